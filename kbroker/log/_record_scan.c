/* Scans the well-formed records of a batch (format v2), some thousand of them in one call.
 *
 * Owns one question: which records from a position on are certainly valid, and what do they have in common? It stops
 * before the first one that is incomplete, broken, or has many headers, without a reason: record_walk.py reads that
 * record, and decides. So a fault of this file can let a record pass or make the walk slow, but only one place refuses
 * records. tests/log/mutated_batches.py compares both.
 *
 * `borders` finds where records begin, and checks nothing else. `record` decodes one, and leaves what is unusual to
 * record_at of protocol/records.py. `prefixes` and `places` own a further question: with which bytes do the keys or values
 * begin, and where are they? They tell nothing if they are not sure, and schema_tokens.py reads the records.
 *
 * `find` and `deliver` belong to schedule topics (_record_delivery.c), `with_header` and
 * `header_values` to filters (_record_headers.c).
 *
 * The caller bounds a call's work by `most`; a record costs some nanoseconds, whatever its size. The stable ABI of
 * CPython 3.11 is used, so one build serves all later versions.
 */

#include "_record_scan.h"

/* Most headers in one call, about 20 us; a record with more is left to the caller. */
#define MOST_HEADERS 4096

static int pass_headers(cursor *in, int32_t count)
{
    int32_t size;
    for (; count; count--) {
        if (!pass_field(in, &size) || size < 0 || !pass_field(in, &size))
            return 0;
    }
    return 1;
}

/* The layout of records without headers of one size, in bytes from the first; `size` is 0 if unknown.
 *
 * Most records of a batch have the layout of the previous one. Then only timestamp and offset are decoded, which takes
 * half of the time. A word holds the bytes of a size's varint; its mask covers as many bytes as the varint has.
 */
typedef struct {
    Py_ssize_t size, size_bytes, key_at, value_at;
    uint32_t size_word, size_mask, key_word, key_mask, value_word, value_mask;
} layout;

static inline uint32_t word_at(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* By number of bytes: the mask of the first bytes of a word. */
static const uint8_t FIRST[8][4] = {{0}, {255}, {255, 255}, {255, 255, 255}, {255, 255, 255, 255}};

static inline Py_ssize_t varint_bytes(const uint8_t *at)
{
    Py_ssize_t bytes = 1;
    while (*at++ >= 0x80)
        bytes++;
    return bytes;
}

/* Note the layout of a whole record whose key's size is at `key_at`; skipped if a size takes over four bytes. */
static void note_layout(layout *known, const uint8_t *record, const uint8_t *behind, const uint8_t *key_at, int32_t key)
{
    const uint8_t *value_at = key_at + varint_bytes(key_at) + (key > 0 ? key : 0);
    Py_ssize_t size_bytes = varint_bytes(record), key_bytes = varint_bytes(key_at), value_bytes = varint_bytes(value_at);
    uint32_t size_mask = word_at(FIRST[size_bytes & 7]), key_mask = word_at(FIRST[key_bytes & 7]);
    uint32_t value_mask = word_at(FIRST[value_bytes & 7]);
    known->size = 0;
    if (size_bytes > 4 || key_bytes > 4 || value_bytes > 4 || behind - value_at < 4)
        return;
    *known = (layout){
        behind - record, size_bytes, key_at - record, value_at - record,
        word_at(record) & size_mask, size_mask, word_at(key_at) & key_mask, key_mask,
        word_at(value_at) & value_mask, value_mask,
    };
}

/* Whether a record of this layout begins here, with `known->size` bytes left; then it is well formed. */
static inline int has_layout(const layout *known, const uint8_t *record, int64_t *stamp, int32_t *offset)
{
    if ((word_at(record) & known->size_mask) != known->size_word || record[known->size - 1])
        return 0;
    cursor in = {record + known->size_bytes + 1, record + known->key_at};
    return read_long(&in, stamp) && read_int(&in, offset) && in.at == in.end
        && (word_at(in.at) & known->key_mask) == known->key_word
        && (word_at(record + known->value_at) & known->value_mask) == known->value_word;
}

PyDoc_STRVAR(scan_doc,
"scan(data, position, most, delta) -> (number, end, smallest, largest, first, in_order, lacks_keys, headers)\n"
"\n"
"Pass over up to `most` well-formed records from byte `position` of `data` on.\n"
"\n"
"Returns how many were passed, and the position behind them; their smallest, largest and first timestamp deltas in ms,\n"
"counted from the batch's base timestamp; whether their offset deltas count up from `delta`; whether a record has no\n"
"key; and how many headers they have. Passes none where the first record is broken, cut off or has over 4,096 headers.");

static PyObject *scan(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "scan takes data, position, most and delta");
        return NULL;
    }
    Py_ssize_t position = PyLong_AsSsize_t(args[1]), most = PyLong_AsSsize_t(args[2]);
    long long delta = PyLong_AsLongLong(args[3]);
    Py_buffer view;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (position < 0 || position > view.len) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "position outside the data");
        return NULL;
    }
    const uint8_t *start = view.buf, *end = start + view.len, *passed = start + position;
    Py_ssize_t number = 0;
    int64_t smallest = 0, largest = 0, first = 0, headers = 0;
    int in_order = 1, lacks_keys = 0;
    layout known = {0};
    Py_ssize_t last = 0;
    while (number < most && headers <= MOST_HEADERS) {
        int32_t size, offset, key, value, count;
        int64_t stamp;
        if (known.size && known.size <= end - passed && has_layout(&known, passed, &stamp, &offset)) {
            passed += known.size;
        } else {
            cursor in = {passed, end};
            if (!read_int(&in, &size) || size <= 0 || size > end - in.at)
                break;
            in.end = in.at + size;
            in.at++; /* attributes, all of them undefined */
            if (!read_long(&in, &stamp) || !read_int(&in, &offset))
                break;
            const uint8_t *key_at = in.at;
            if (!pass_field(&in, &key) || !pass_field(&in, &value))
                break;
            if (!read_int(&in, &count) || count < 0 || count > MOST_HEADERS || !pass_headers(&in, count))
                break;
            if (in.at != in.end)
                break;
            if (!count && in.end - passed == last) /* the second of this size */
                note_layout(&known, passed, in.end, key_at, key);
            lacks_keys |= key < 0;
            headers += count;
            last = in.end - passed;
            passed = in.end;
        }
        if (!number)
            smallest = largest = first = stamp;
        else if (stamp < smallest)
            smallest = stamp;
        else if (stamp > largest)
            largest = stamp;
        in_order &= offset == delta + number;
        number++;
    }
    Py_ssize_t behind = passed - start;
    PyBuffer_Release(&view);
    return Py_BuildValue("(nnLLLOOL)", number, behind, (long long)smallest, (long long)largest, (long long)first,
                         in_order ? Py_True : Py_False, lacks_keys ? Py_True : Py_False, (long long)headers);
}

#define PREFIX 5
/* Most distinct prefixes in one call: each record is compared with all of them. */
#define MOST_PREFIXES 32

/* Pass headers, none of which may have this name; 0 if one has it, or if they are broken. */
static int pass_other_headers(cursor *in, int32_t count, const char *name, int32_t name_size)
{
    int32_t size;
    for (; count; count--) {
        const uint8_t *at = in->at;
        if (!pass_field(in, &size) || size < 0)
            return 0;
        if (size == name_size && in->at - at > size && !memcmp(in->at - size, name, (size_t)size))
            return 0;
        if (!pass_field(in, &size))
            return 0;
    }
    return 1;
}

/* Where a key, or a value, lies; `size` is negative for null. */
typedef struct {
    const uint8_t *at;
    int32_t size;
} field;

/* Find the key or value of the record at `all`, and pass the record; 0 if it is not sure: the record is broken, has many
 * headers or one of this name, or the field has fewer than PREFIX bytes. */
static inline int find_field(cursor *all, int of_keys, const char *name, int32_t name_size, field *found)
{
    int32_t size, offset, count, key, value;
    int64_t stamp;
    if (!read_int(all, &size) || size <= 0 || size > all->end - all->at)
        return 0;
    cursor in = {all->at + 1, all->at + size};
    all->at += size;
    if (!read_long(&in, &stamp) || !read_int(&in, &offset) || !pass_field(&in, &key))
        return 0;
    *found = (field){in.at - (key > 0 ? key : 0), key};
    if (!pass_field(&in, &value))
        return 0;
    if (!of_keys)
        *found = (field){in.at - (value > 0 ? value : 0), value};
    if (!read_int(&in, &count) || count < 0 || count > MOST_HEADERS)
        return 0;
    if (!pass_other_headers(&in, count, name, name_size) || in.at != in.end)
        return 0;
    return found->size < 0 || found->size >= PREFIX;
}

/* The arguments of both functions below; 0 with an exception. The caller releases the view. */
static int read_arguments(PyObject *const *args, Py_ssize_t nargs, Py_buffer *view, cursor *all, Py_ssize_t *count,
                          int *of_keys, const char **name, int32_t *name_size)
{
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "five arguments are needed: data, position, count, of_keys, header");
        return 0;
    }
    Py_ssize_t position = PyLong_AsSsize_t(args[1]), size;
    char *text;
    *count = PyLong_AsSsize_t(args[2]);
    *of_keys = PyObject_IsTrue(args[3]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[4], &text, &size) < 0)
        return 0;
    if (PyObject_GetBuffer(args[0], view, PyBUF_SIMPLE) < 0)
        return 0;
    if (position < 0 || position > view->len || view->len > INT32_MAX) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_ValueError, "position outside the data");
        return 0;
    }
    *all = (cursor){(const uint8_t *)view->buf + position, (const uint8_t *)view->buf + view->len};
    *name = text;
    *name_size = (int32_t)size;
    return 1;
}

PyDoc_STRVAR(prefixes_doc,
"prefixes(data, position, count, of_keys, header) -> bytes or None\n"
"\n"
"Return the distinct first five bytes of the values, or keys, of `count` records from byte `position` to the end of\n"
"`data`, one behind the other in the order of their appearance; fields that are null are left out.\n"
"\n"
"None if it is not sure: a record is broken, has over 4,096 headers or one of the name `header`, a field has fewer bytes,\n"
"or there are more than 32.");

static PyObject *prefixes(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    Py_buffer view;
    cursor all;
    Py_ssize_t left, number = 0;
    int of_keys;
    const char *name;
    int32_t name_size;
    if (!read_arguments(args, nargs, &view, &all, &left, &of_keys, &name, &name_size))
        return NULL;
    uint8_t known[MOST_PREFIXES * PREFIX];
    int sure = 1;
    for (; sure && left > 0; left--) {
        field found;
        sure = find_field(&all, of_keys, name, name_size, &found);
        if (!sure || found.size < 0)
            continue;
        /* Mostly the same as that of the record before. */
        Py_ssize_t at = number;
        while (at && memcmp(known + (at - 1) * PREFIX, found.at, PREFIX))
            at--;
        if (at)
            continue;
        sure = number < MOST_PREFIXES;
        if (sure)
            memcpy(known + number++ * PREFIX, found.at, PREFIX);
    }
    sure = sure && all.at == all.end;
    PyBuffer_Release(&view);
    if (!sure)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)known, number * PREFIX);
}

PyDoc_STRVAR(places_doc,
"places(data, position, count, of_keys, header) -> bytes or None\n"
"\n"
"Return where the values, or keys, of `count` records from byte `position` to the end of `data` begin and end: two native\n"
"i32 for each, -1 and -1 for one that is null. None where `prefixes` returns it, whatever the number of prefixes.");

static PyObject *places(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    Py_buffer view;
    cursor all;
    Py_ssize_t count;
    int of_keys;
    const char *name;
    int32_t name_size;
    if (!read_arguments(args, nargs, &view, &all, &count, &of_keys, &name, &name_size))
        return NULL;
    /* A record has seven bytes at least. */
    PyObject *out = count < 0 || count > view.len / 7 ? NULL : PyBytes_FromStringAndSize(NULL, count * 8);
    int sure = out != NULL;
    char *to = sure ? PyBytes_AsString(out) : NULL;
    for (; sure && count > 0; count--, to += 8) {
        field found;
        sure = find_field(&all, of_keys, name, name_size, &found);
        if (!sure)
            break;
        int32_t start = (int32_t)(found.at - (const uint8_t *)view.buf);
        int32_t pair[2] = {start, start + found.size};
        if (found.size < 0)
            pair[0] = pair[1] = -1;
        memcpy(to, pair, sizeof pair);
    }
    sure = sure && all.at == all.end;
    PyBuffer_Release(&view);
    if (PyErr_Occurred())
        return NULL;
    if (!sure) {
        Py_XDECREF(out);
        Py_RETURN_NONE;
    }
    return out;
}

PyDoc_STRVAR(borders_doc,
"borders(data, position, count) -> bytes or None\n"
"\n"
"Return where `count` records from byte `position` begin, and where the last one ends: a native i32 for each.\n"
"None if a record is cut off or has a negative size.");

static PyObject *borders(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    Py_buffer view;
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "three arguments are needed: data, position, count");
        return NULL;
    }
    Py_ssize_t position = PyLong_AsSsize_t(args[1]), count = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (position < 0 || position > view.len || view.len > INT32_MAX || count < 0 || count > view.len - position) {
        PyBuffer_Release(&view);
        Py_RETURN_NONE;
    }
    PyObject *out = PyBytes_FromStringAndSize(NULL, (count + 1) * 4);
    if (out == NULL) {
        PyBuffer_Release(&view);
        return NULL;
    }
    const uint8_t *start = view.buf;
    cursor in = {start + position, start + view.len};
    char *to = PyBytes_AsString(out);
    int sure = 1;
    for (;; to += 4) {
        int32_t at = (int32_t)(in.at - start), size;
        memcpy(to, &at, sizeof at);
        if (count-- == 0)
            break;
        sure = read_int(&in, &size) && size >= 0 && size <= in.end - in.at;
        if (!sure)
            break;
        in.at += size;
    }
    PyBuffer_Release(&view);
    if (sure)
        return out;
    Py_DECREF(out);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(record_doc,
"record(data, position) -> (timestamp delta, offset delta, key, value, headers) or None\n"
"\n"
"Decode the record at byte `position`. None if it is broken, or has many headers.");

/* Return the bytes of a field with its size in front, None for null; NULL if it reaches beyond the record, or after an
 * error, which is then set. */
static PyObject *content(cursor *in)
{
    int32_t size;
    if (!pass_field(in, &size))
        return NULL;
    if (size < 0)
        return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)in->at - size, size);
}

static PyObject *headers_of(cursor *in, int32_t count)
{
    PyObject *headers = PyTuple_New(count);
    for (int32_t index = 0; headers != NULL && index < count; index++) {
        PyObject *name = NULL, *value = NULL, *pair = NULL;
        int32_t size;
        if (pass_field(in, &size) && size >= 0)
            name = PyUnicode_DecodeUTF8((const char *)in->at - size, size, "replace");
        if (name != NULL)
            value = content(in);
        if (value != NULL)
            pair = PyTuple_Pack(2, name, value);
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (pair == NULL || PyTuple_SetItem(headers, index, pair) < 0) {
            Py_DECREF(headers);
            return NULL;
        }
    }
    return headers;
}

static PyObject *record(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    Py_buffer view;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "two arguments are needed: data, position");
        return NULL;
    }
    Py_ssize_t position = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *key = NULL, *value = NULL, *headers = NULL, *found = NULL;
    if (position >= 0 && position <= view.len) {
        const uint8_t *start = view.buf;
        cursor in = {start + position, start + view.len};
        int32_t size, offset, count;
        int64_t timestamp;
        if (read_int(&in, &size) && size > 0 && size <= in.end - in.at) {
            in.end = in.at + size;
            in.at++; /* the attributes */
            if (read_long(&in, &timestamp) && read_int(&in, &offset) && (key = content(&in)) != NULL
                && (value = content(&in)) != NULL && read_int(&in, &count) && count >= 0 && count <= MOST_HEADERS
                && count <= in.end - in.at && (headers = headers_of(&in, count)) != NULL && in.at == in.end)
                found = Py_BuildValue("(LiOOO)", (long long)timestamp, (int)offset, key, value, headers);
        }
    }
    PyBuffer_Release(&view);
    Py_XDECREF(key);
    Py_XDECREF(value);
    Py_XDECREF(headers);
    if (found == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return found;
}

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL, scan_doc},
    {"prefixes", (PyCFunction)(void (*)(void))prefixes, METH_FASTCALL, prefixes_doc},
    {"places", (PyCFunction)(void (*)(void))places, METH_FASTCALL, places_doc},
    {"borders", (PyCFunction)(void (*)(void))borders, METH_FASTCALL, borders_doc},
    {"find", (PyCFunction)(void (*)(void))find_records, METH_FASTCALL, find_doc},
    {"deliver", (PyCFunction)(void (*)(void))deliver_records, METH_FASTCALL, deliver_doc},
    {"with_header", (PyCFunction)(void (*)(void))find_with_header, METH_FASTCALL, with_header_doc},
    {"header_values", (PyCFunction)(void (*)(void))find_header_values, METH_FASTCALL, header_values_doc},
    {"record", (PyCFunction)(void (*)(void))record, METH_FASTCALL, record_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "kbroker.log._record_scan", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__record_scan(void)
{
    return PyModule_Create(&module);
}
