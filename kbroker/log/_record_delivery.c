/* Finds records by their offsets, and gives them the headers with which a schedule topic delivers them.
 *
 * Owns two questions: where are the records with these offsets, and what are the same records as the target gets them?
 * `deliver` stops before a record that it does not understand completely: kbroker/scheduling/raw_records.py reads it, and
 * decides. tests/scheduling/test_raw_records.py compares both. Every write is checked against the room.
 */

#include "_record_scan.h"

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

const char find_doc[] =
"find(data, position, count, base, wanted) -> (places, end, left)\n"
"\n"
"Find records by their offsets among up to `count` records from byte `position` of `data` on.\n"
"\n"
"`base` is the batch's base offset, and `wanted` has offsets as native i64 in ascending order. `places` has a native i64 for\n"
"each offset that was passed: where its record begins, -1 if there is none. `end` and `left` say where a further call goes\n"
"on, and how many records are left; a broken record, and the last wanted one, end the search with 0. A call passes at most\n"
"4,096 records.";

#define MOST_FOUND 4096

PyObject *find_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
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

const char deliver_doc[] =
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
"least.";

PyObject *deliver_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
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
