/* Finds the records of a batch that have a header of a name with one of several values.
 *
 * Owns one question: which records must a filter look at? `with_header` tells nothing if a record is broken, or if the
 * answer takes long; kbroker/views/opened_batch.py then searches the bytes. tests/views/test_opened_batch.py compares both.
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

/* Read the record at `in`, and pass it. Return whether it has the header; -1 if it is broken. */
static int read_record(cursor *all, const wanted *find, Py_ssize_t *steps)
{
    int32_t size, offset, count;
    int64_t timestamp;
    if (!read_int(all, &size) || size <= 0 || size > all->end - all->at)
        return -1;
    cursor in = {all->at + 1, all->at + size}; /* the first byte has attributes */
    all->at += size;
    if (!read_long(&in, &timestamp) || !read_int(&in, &offset) || !pass_field(&in, &size) || !pass_field(&in, &size)
        || !read_int(&in, &count) || count < 0)
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
