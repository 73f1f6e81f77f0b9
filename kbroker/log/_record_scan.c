/* Scans the well-formed records of a batch (format v2), some thousand of them in one call.
 *
 * Owns one question: which records from a position on are certainly valid, and what do they have in common? It stops
 * before the first one that is incomplete, broken, or has many headers, without a reason: record_walk.py reads that
 * record, and decides. So a fault of this file can let a record pass or make the walk slow, but only one place refuses
 * records. tests/log/mutated_batches.py compares both.
 *
 * `borders` finds where records begin, and checks nothing else. `prefixes` and `places` own a further question: with
 * which bytes do the keys or values begin, and where are they? They tell nothing if they are not sure, and
 * schema_tokens.py reads the records.
 *
 * `find` and `deliver` belong to schedule topics: where are the records with these offsets, and what are the same records
 * with other headers, as the target gets them? `deliver` stops before a record that it does not understand completely, and
 * scheduling/raw_records.py reads it.
 *
 * The caller bounds a call's work by `most`; a record costs some nanoseconds, whatever its size. The stable ABI of
 * CPython 3.11 is used, so one build serves all later versions.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Most headers in one call, about 20 us; a record with more is left to the caller. */
#define MOST_HEADERS 4096

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} cursor;

/* Read a varint of at most 5 bytes; the bits above the 32nd are ignored, as in Kafka's ByteUtils. 0: cut off or endless. */
static inline int read_int(cursor *in, int32_t *value)
{
    uint32_t bits = 0;
    for (int shift = 0; shift < 35 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        bits |= (uint32_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int32_t)((bits >> 1) ^ (0 - (bits & 1)));
            return 1;
        }
    }
    return 0;
}

/* Read a varlong of at most 10 bytes; 0 if it is cut off or endless. */
static inline int read_long(cursor *in, int64_t *value)
{
    uint64_t bits = 0;
    for (int shift = 0; shift < 70 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        bits |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int64_t)((bits >> 1) ^ (0 - (bits & 1)));
            return 1;
        }
    }
    return 0;
}

/* Skip a field with its size in front, negative for null; 0 if it reaches beyond the record. */
static inline int pass_field(cursor *in, int32_t *size)
{
    if (!read_int(in, size))
        return 0;
    if (*size > 0) {
        if (*size > in->end - in->at)
            return 0;
        in->at += *size;
    }
    return 1;
}

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

/* A buffer of native i64; 0 with an exception. */
static int get_numbers(PyObject *from, Py_buffer *view)
{
    if (PyObject_GetBuffer(from, view, PyBUF_SIMPLE) < 0)
        return 0;
    if (view->len % (Py_ssize_t)sizeof(int64_t) == 0)
        return 1;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "no numbers of 8 bytes");
    return 0;
}

static inline int64_t number_at(const Py_buffer *view, Py_ssize_t place)
{
    int64_t value;
    memcpy(&value, (const char *)view->buf + place * (Py_ssize_t)sizeof value, sizeof value);
    return value;
}

PyDoc_STRVAR(find_doc,
"find(data, position, count, base, wanted) -> (places, end, left)\n"
"\n"
"Find records by their offsets among up to `count` records from byte `position` of `data` on.\n"
"\n"
"`base` is the batch's base offset, and `wanted` has offsets as native i64 in ascending order. `places` has a native i64 for\n"
"each offset that was passed: where its record begins, -1 if there is none. `end` and `left` say where a further call goes\n"
"on, and how many records are left; a broken record, and the last wanted one, end the search with 0. A call passes at most\n"
"4,096 records.");

#define MOST_FOUND 4096

static PyObject *find(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "find takes data, position, count, base and wanted");
        return NULL;
    }
    Py_ssize_t position = PyLong_AsSsize_t(args[1]), left = PyLong_AsSsize_t(args[2]);
    long long base = PyLong_AsLongLong(args[3]);
    Py_buffer view, wanted;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (!get_numbers(args[4], &wanted)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    Py_ssize_t many = wanted.len / (Py_ssize_t)sizeof(int64_t), at = 0;
    PyObject *answer = NULL;
    int64_t *places = PyMem_Malloc(wanted.len ? (size_t)wanted.len : 1);
    if (position < 0 || position > view.len || left < 0)
        PyErr_SetString(PyExc_ValueError, "position outside the data");
    else if (places == NULL)
        PyErr_NoMemory();
    else {
        const uint8_t *start = view.buf;
        cursor all = {start + position, start + view.len};
        for (int passed = 0; left > 0 && at < many && passed < MOST_FOUND; passed++) {
            int32_t size, delta;
            int64_t stamp;
            const uint8_t *record = all.at;
            if (!read_int(&all, &size) || size <= 0 || size > all.end - all.at) {
                left = 0;
                break;
            }
            cursor in = {all.at + 1, all.at + size};
            if (!read_long(&in, &stamp) || !read_int(&in, &delta)) {
                left = 0;
                break;
            }
            all.at += size;
            left--;
            while (at < many && number_at(&wanted, at) < base + delta)
                places[at++] = -1;
            if (at < many && number_at(&wanted, at) == base + delta)
                places[at++] = record - start;
        }
        if (at == many)
            left = 0;
        if (left == 0)
            while (at < many)
                places[at++] = -1;
        answer = Py_BuildValue("(y#nn)", (const char *)places, at * (Py_ssize_t)sizeof(int64_t), all.at - start, left);
    }
    PyMem_Free(places);
    PyBuffer_Release(&wanted);
    PyBuffer_Release(&view);
    return answer;
}

/* The hash of Kafka's partitioner (schedules/partitioner.py). */
static uint32_t murmur2(const uint8_t *data, int32_t size)
{
    const uint32_t m = 0x5BD1E995;
    uint32_t value = 0x9747B28CU ^ (uint32_t)size;
    for (; size >= 4; data += 4, size -= 4) {
        uint32_t word = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        word *= m;
        value = (value * m) ^ ((word ^ word >> 24) * m);
    }
    if (size > 0) {
        uint32_t rest = 0;
        for (int32_t byte = 0; byte < size; byte++)
            rest |= (uint32_t)data[byte] << (8 * byte);
        value = (value ^ rest) * m;
    }
    value = (value ^ value >> 13) * m;
    return value ^ value >> 15;
}

static uint8_t *put_int(uint8_t *to, int32_t value)
{
    uint32_t bits = ((uint32_t)value << 1) ^ (0 - ((uint32_t)value >> 31));
    for (; bits >= 0x80; bits >>= 7)
        *to++ = (uint8_t)(bits | 0x80);
    *to++ = (uint8_t)bits;
    return to;
}

static Py_ssize_t int_bytes(int32_t value)
{
    uint8_t room[5];
    return put_int(room, value) - room;
}

/* Write a number that is not negative as text. */
static uint8_t *put_text(uint8_t *to, int64_t value)
{
    uint8_t digits[20];
    int count = 0;
    do
        digits[count++] = (uint8_t)('0' + value % 10);
    while ((value /= 10) > 0);
    while (count)
        *to++ = digits[--count];
    return to;
}

/* What a header's name means: it is passed on, it is left out, or the record needs a closer look. */
enum { PASSED_ON = 0, LEFT_OUT = '-', CLOSER_LOOK = '?' };

typedef struct {
    const uint8_t *rules, *end; /* each: what it means, whether as a prefix ('*') or as a whole, size, text */
    const uint8_t *offset_name, *at_name;
    Py_ssize_t offset_name_size, at_name_size;
} shape;

static int meaning(const shape *of, const uint8_t *name, int32_t size)
{
    if (size < 2 || (name[0] != 'x' && name[0] != '_'))
        return PASSED_ON;
    for (const uint8_t *rule = of->rules; of->end - rule >= 3 && of->end - rule - 3 >= rule[2]; rule += 3 + rule[2]) {
        int is_prefix = rule[1] == '*';
        if ((is_prefix ? size >= rule[2] : size == rule[2]) && !memcmp(name, rule + 3, rule[2]))
            return rule[0];
    }
    return PASSED_ON;
}

#define MOST_PASSED_HEADERS 63
/* The bytes of a record up to which it is read here, and the bytes that a call reads. */
#define MOST_RECORD_BYTES (1 << 17)
#define MOST_READ_BYTES (1 << 18)
/* More bytes than the numbers of a delivered record have. */
#define NUMBERS_BYTES 80

typedef struct {
    const uint8_t *at;
    Py_ssize_t size;
} range;

typedef struct {
    int32_t key_size;
    const uint8_t *key;      /* the bytes of the key */
    range fields;            /* key and value with their sizes */
    int32_t count;           /* the headers that are passed on */
    int range_count;
    range kept[MOST_PASSED_HEADERS];
    Py_ssize_t kept_size;
} passed_record;

/* Read the record at `in`; 0 if it is broken, large, or needs a closer look. */
static int read_passed(cursor in, const shape *of, passed_record *out)
{
    int32_t size, offset, value, count, name, content;
    int64_t stamp;
    if (!read_int(&in, &size) || size <= 0 || size > in.end - in.at || size >= MOST_RECORD_BYTES)
        return 0;
    in.end = in.at + size;
    in.at++;
    if (!read_long(&in, &stamp) || !read_int(&in, &offset))
        return 0;
    out->fields.at = in.at;
    if (!pass_field(&in, &out->key_size))
        return 0;
    out->key = in.at - (out->key_size > 0 ? out->key_size : 0);
    if (!pass_field(&in, &value))
        return 0;
    out->fields.size = in.at - out->fields.at;
    if (!read_int(&in, &count) || count < 0 || count > MOST_PASSED_HEADERS)
        return 0;
    out->count = out->range_count = 0;
    out->kept_size = 0;
    for (; count; count--) {
        const uint8_t *begin = in.at;
        if (!pass_field(&in, &name) || name < 0)
            return 0;
        int means = meaning(of, in.at - name, name);
        if (!pass_field(&in, &content) || means == CLOSER_LOOK)
            return 0;
        if (means == LEFT_OUT)
            continue;
        out->kept[out->range_count++] = (range){begin, in.at - begin};
        out->kept_size += in.at - begin;
        out->count++;
    }
    return in.at == in.end;
}

/* Write a delivered record; return where it ends. */
static uint8_t *put_passed(uint8_t *to, const shape *of, const passed_record *from, int32_t delta, int64_t offset,
                           int64_t due)
{
    uint8_t offset_text[20], due_text[20];
    int32_t offset_size = (int32_t)(put_text(offset_text, offset) - offset_text);
    int32_t due_size = (int32_t)(put_text(due_text, due) - due_text);
    Py_ssize_t body = 2 + int_bytes(delta) + from->fields.size + int_bytes(from->count + 4) + from->kept_size
        + of->offset_name_size + 1 + offset_size + of->at_name_size + 1 + due_size;
    to = put_int(to, (int32_t)body);
    *to++ = 0;
    *to++ = 0;
    to = put_int(to, delta);
    memcpy(to, from->fields.at, (size_t)from->fields.size);
    to = put_int(to + from->fields.size, from->count + 4);
    for (int each = 0; each < from->range_count; each++) {
        memcpy(to, from->kept[each].at, (size_t)from->kept[each].size);
        to += from->kept[each].size;
    }
    memcpy(to, of->offset_name, (size_t)of->offset_name_size);
    to = put_int(to + of->offset_name_size, offset_size);
    memcpy(to, offset_text, (size_t)offset_size);
    to += offset_size;
    memcpy(to, of->at_name, (size_t)of->at_name_size);
    to = put_int(to + of->at_name_size, due_size);
    memcpy(to, due_text, (size_t)due_size);
    return to + due_size;
}

PyDoc_STRVAR(deliver_doc,
"deliver(data, places, offsets, dues, begin, shape, partition, partitions, takes_keyless, delta, room)\n"
"    -> (records, fates)\n"
"\n"
"Return records as a schedule topic delivers them to one partition, one behind the other.\n"
"\n"
"`places`, `offsets` and `dues` are native i64, one for each record: where it begins in `data` (in the lower 32 bits; the\n"
"upper ones have the number of the data, and all records of a call have the same), its offset, and when it was due. The\n"
"call begins with number `begin`. `shape` is (rules, offset_name, at_name): which headers are left out ('-') or need a\n"
"closer look ('?'), by their whole name ('=') or its beginning ('*'), each as these two characters, its size and the text;\n"
"and the last headers up to their values' sizes. `delta` is the number of the first record in its batch, and `room` the\n"
"most bytes. A record with a key goes to the partition that the key chooses among `partitions`.\n"
"\n"
"`fates` has a byte for each record that was looked at: 1 if it is among `records`, 0 if it goes to another partition. The\n"
"next one is not there, does not fit, or needs a closer look; or the call has read enough, and then has looked at one at\n"
"least.");

static PyObject *deliver(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    const char *rules, *offset_name, *at_name;
    Py_ssize_t rules_size;
    shape of;
    if (nargs != 11) {
        PyErr_SetString(PyExc_TypeError, "deliver takes eleven arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args[5], "y#y#y#", &rules, &rules_size, &offset_name, &of.offset_name_size, &at_name,
                          &of.at_name_size))
        return NULL;
    of.rules = (const uint8_t *)rules;
    of.end = of.rules + rules_size;
    of.offset_name = (const uint8_t *)offset_name;
    of.at_name = (const uint8_t *)at_name;
    Py_ssize_t begin = PyLong_AsSsize_t(args[4]), room = PyLong_AsSsize_t(args[10]);
    long partition = PyLong_AsLong(args[6]), partitions = PyLong_AsLong(args[7]), delta = PyLong_AsLong(args[9]);
    int takes_keyless = PyObject_IsTrue(args[8]);
    Py_buffer view, places, offsets, dues;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (!get_numbers(args[1], &places)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    if (!get_numbers(args[2], &offsets)) {
        PyBuffer_Release(&places);
        PyBuffer_Release(&view);
        return NULL;
    }
    if (!get_numbers(args[3], &dues)) {
        PyBuffer_Release(&offsets);
        PyBuffer_Release(&places);
        PyBuffer_Release(&view);
        return NULL;
    }
    PyObject *answer = NULL;
    Py_ssize_t many = places.len / (Py_ssize_t)sizeof(int64_t), at = begin;
    uint8_t *records = NULL, *fates = NULL;
    if (offsets.len != places.len || dues.len != places.len || begin < 0 || begin > many || room < 0
        || room > INT32_MAX || delta < 0 || delta > INT32_MAX - many || partitions < 1) {
        PyErr_SetString(PyExc_ValueError, "arguments that contradict each other");
        goto end;
    }
    records = PyMem_Malloc(room ? (size_t)room : 1);
    fates = PyMem_Malloc(many > begin ? (size_t)(many - begin) : 1);
    if (records == NULL || fates == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    uint8_t *to = records;
    Py_ssize_t read = 0;
    int64_t buffer = at < many ? number_at(&places, at) >> 32 : 0;
    for (; at < many && read < MOST_READ_BYTES; at++) {
        int64_t place = number_at(&places, at), offset = number_at(&offsets, at), due = number_at(&dues, at);
        passed_record record;
        if (place < 0 || place >> 32 != buffer || offset < 0 || due < 0)
            break;
        place &= 0xFFFFFFFF;
        cursor in = {(const uint8_t *)view.buf + place, (const uint8_t *)view.buf + view.len};
        if (place >= view.len || !read_passed(in, &of, &record))
            break;
        read += record.fields.size + record.kept_size;
        int is_here = takes_keyless;
        if (record.key_size >= 0)
            is_here = (long)((murmur2(record.key, record.key_size) & 0x7FFFFFFF) % (unsigned long)partitions) == partition;
        if (is_here) {
            Py_ssize_t most = record.fields.size + record.kept_size + of.offset_name_size + of.at_name_size + NUMBERS_BYTES;
            if (most > room - (to - records))
                break;
            to = put_passed(to, &of, &record, (int32_t)delta, offset, due);
            delta++;
        }
        fates[at - begin] = (uint8_t)is_here;
    }
    answer = Py_BuildValue("(y#y#)", (const char *)records, (Py_ssize_t)(to - records), (const char *)fates, at - begin);
end:
    PyMem_Free(fates);
    PyMem_Free(records);
    PyBuffer_Release(&dues);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&places);
    PyBuffer_Release(&view);
    return answer;
}

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL, scan_doc},
    {"prefixes", (PyCFunction)(void (*)(void))prefixes, METH_FASTCALL, prefixes_doc},
    {"places", (PyCFunction)(void (*)(void))places, METH_FASTCALL, places_doc},
    {"borders", (PyCFunction)(void (*)(void))borders, METH_FASTCALL, borders_doc},
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL, find_doc},
    {"deliver", (PyCFunction)(void (*)(void))deliver, METH_FASTCALL, deliver_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "kbroker.log._record_scan", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__record_scan(void)
{
    return PyModule_Create(&module);
}
