/* What all parts of the extension know of a record's bytes: its numbers, and its fields.
 *
 * Every read is checked against the end of the data.
 */

#ifndef KBROKER_RECORD_SCAN_H
#define KBROKER_RECORD_SCAN_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

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

/* _record_delivery.c */
extern const char find_doc[], deliver_doc[];
PyObject *find_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *deliver_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* _record_headers.c */
extern const char with_header_doc[], header_values_doc[];
PyObject *find_with_header(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *find_header_values(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
