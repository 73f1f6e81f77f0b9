/* Finds the records of a batch that have a header of a name with one of several values, and the values of a header.
 *
 * Owns two questions: which records must a filter look at, and which filters must look at a batch? Both functions tell
 * nothing if a record is broken, or if the answer takes long; kbroker/views then searches the bytes.
 * tests/views/test_opened_batch.py compares both.
 */

#include "_record_scan.h"

/* Most headers and comparisons in one call, some ms. */
#define MOST_STEPS 200000

/* The wanted values, one behind the other: the size of each as native i32, negative for a beginning, and its bytes. */
typedef struct {
    const char *name, *texts;
    Py_ssize_t name_size, texts_size;
} wanted;

static int has_text(const wanted *find, const uint8_t *value, int32_t size, Py_ssize_t *steps)
{
    for (const char *at = find->texts, *end = at + find->texts_size; at < end; ++*steps) {
        int32_t length;
        memcpy(&length, at, sizeof length);
        at += sizeof length;
        int begins = length < 0;
        length = begins ? -length : length;
        if ((begins ? size >= length : size == length) && !memcmp(value, at, (size_t)length))
            return 1;
        at += length;
    }
    return 0;
}

/* Pass the record at `all`, and set `in` to its headers. Return their number; -1 if it is broken. */
static int32_t begin_headers(cursor *all, cursor *in)
{
    int32_t size, offset, count;
    int64_t timestamp;
    if (!read_int(all, &size) || size <= 0 || size > all->end - all->at)
        return -1;
    *in = (cursor){all->at + 1, all->at + size}; /* the first byte has attributes */
    all->at += size;
    if (!read_long(in, &timestamp) || !read_int(in, &offset) || !pass_field(in, &size) || !pass_field(in, &size)
        || !read_int(in, &count) || count < 0)
        return -1;
    return count;
}

/* Pass the record at `all`. Return whether it has the header; -1 if it is broken. */
static int read_record(cursor *all, const wanted *find, Py_ssize_t *steps)
{
    cursor in;
    int32_t size, count = begin_headers(all, &in);
    if (count < 0)
        return -1;
    for (; count; count--) {
        if (++*steps > MOST_STEPS || !pass_field(&in, &size) || size < 0)
            return -1;
        int is_named = size == find->name_size && !memcmp(in.at - size, find->name, (size_t)size);
        if (!pass_field(&in, &size))
            return -1;
        if (is_named && size >= 0 && has_text(find, in.at - size, size, steps))
            return 1;
    }
    return in.at == in.end ? 0 : -1;
}

const char with_header_doc[] =
"with_header(data, count, name, texts) -> bytes or None\n"
"\n"
"Find the records that have a header of a name with one of several values, among the `count` records that `data` has.\n"
"\n"
"`texts` has the values one behind the other: before the bytes of each their number as native i32, negative if a value only\n"
"begins with them. Return three native i32 for each record found: its index, and where it begins and ends. None if a record\n"
"is broken, or if there are more than some 200,000 headers and comparisons.";

PyObject *find_with_header(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "with_header takes data, count, name and texts");
        return NULL;
    }
    wanted find;
    char *name, *texts;
    Py_ssize_t count = PyLong_AsSsize_t(args[1]), steps = 0;
    Py_buffer view;
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[2], &name, &find.name_size) < 0
        || PyBytes_AsStringAndSize(args[3], &texts, &find.texts_size) < 0
        || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    find.name = name;
    find.texts = texts;
    /* A record has seven bytes at least. */
    int32_t(*found)[3] = NULL;
    Py_ssize_t number = 0, room = 0;
    int is_sure = view.len <= INT32_MAX && count >= 0 && count <= view.len / 7;
    const uint8_t *start = view.buf;
    cursor all = {start, start + view.len};
    for (Py_ssize_t index = 0; is_sure && index < count; index++) {
        int32_t begin = (int32_t)(all.at - start);
        int has = read_record(&all, &find, &steps);
        is_sure = has >= 0 && steps <= MOST_STEPS;
        if (has != 1)
            continue;
        if (number == room) {
            room = room ? 2 * room : 16;
            void *more = PyMem_Realloc(found, (size_t)room * sizeof *found);
            if (more == NULL) {
                is_sure = 0;
                break;
            }
            found = more;
        }
        found[number][0] = (int32_t)index;
        found[number][1] = begin;
        found[number++][2] = (int32_t)(all.at - start);
    }
    PyObject *answer = NULL;
    if (is_sure && all.at == all.end)
        answer = PyBytes_FromStringAndSize((const char *)found, number * (Py_ssize_t)sizeof *found);
    PyMem_Free(found);
    PyBuffer_Release(&view);
    if (answer == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return answer;
}

const char header_values_doc[] =
"header_values(data, count, name) -> set of bytes or None\n"
"\n"
"Return the values of the headers of a name, among the `count` records that `data` has; without null.\n"
"None if a record is broken, or if there are more than some 200,000 headers.";

/* Add the values in the record at `all` to `found`, and pass the record; 0 if it is broken, or after an error. */
static int take_values(cursor *all, const char *name, Py_ssize_t name_size, PyObject *found, cursor *last,
                       Py_ssize_t *steps)
{
    cursor in;
    int32_t size, count = begin_headers(all, &in);
    for (; count > 0; count--) {
        if (++*steps > MOST_STEPS || !pass_field(&in, &size) || size < 0)
            return 0;
        int is_named = size == name_size && !memcmp(in.at - size, name, (size_t)size);
        if (!pass_field(&in, &size))
            return 0;
        if (!is_named || size < 0)
            continue;
        if (last->at != NULL && last->end - last->at == size && !memcmp(last->at, in.at - size, (size_t)size))
            continue; /* mostly the same as that of the record before */
        *last = (cursor){in.at - size, in.at};
        PyObject *value = PyBytes_FromStringAndSize((const char *)in.at - size, size);
        int failed = value == NULL || PySet_Add(found, value) < 0;
        Py_XDECREF(value);
        if (failed)
            return 0;
    }
    return count == 0 && in.at == in.end;
}

PyObject *find_header_values(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "header_values takes data, count and name");
        return NULL;
    }
    char *name;
    Py_ssize_t count = PyLong_AsSsize_t(args[1]), name_size, steps = 0;
    Py_buffer view;
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[2], &name, &name_size) < 0
        || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *found = PySet_New(NULL);
    cursor all = {view.buf, (const uint8_t *)view.buf + view.len}, last = {NULL, NULL};
    int is_sure = found != NULL && count >= 0 && count <= view.len / 7;
    for (; is_sure && count; count--)
        is_sure = take_values(&all, name, name_size, found, &last, &steps);
    is_sure = is_sure && all.at == all.end;
    PyBuffer_Release(&view);
    if (is_sure)
        return found;
    Py_XDECREF(found);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}
