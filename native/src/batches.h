/* Batches as docs/format.md describes them: the fields that the functions here look at. */

#ifndef COMMITLOG_BATCHES_H
#define COMMITLOG_BATCHES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the fields of a batch are little-endian, and this code loads them as they are; use commitlog without speedups"
#endif

#define MAGIC UINT32_C(0x31424C43) /* "CLB1" */
#define STAMP_BYTES 16
#define SMALLEST_BATCH_BYTES 80
#define LAST_OFFSET (INT64_MAX - 1)
#define CODEC_MASK 7 /* of flags, as the next two */
#define LOG_APPEND_TIME 8
#define DELETE_HORIZON 64

enum { CONSTANT, U8, U16, U32 };       /* the forms of an integer column; there is a wider one */
enum { NO_NULLS, ALL_NULL, BITMAP }; /* where the nulls of a column of byte strings are */

/* The header and the descriptor of an uncompressed batch without headers. In a batch of one record all columns are
 * constant, so that its key comes next. */
typedef struct {
    int64_t offset;
    int32_t leader_epoch;
    uint32_t checksum;
    uint32_t magic;
    uint32_t size;
    int64_t producer_id;
    int64_t timestamp;
    int64_t max_timestamp;
    int32_t base_sequence;
    uint32_t record_count;
    uint32_t last_offset_delta;
    int16_t producer_epoch;
    uint16_t flags;
    uint32_t forms; /* of key lengths, value lengths, timestamps and offsets */
    uint8_t key_nulls;
    uint8_t value_nulls;
    uint16_t has_headers;
    uint32_t key_size;
    uint32_t value_size;
} Front;

_Static_assert(sizeof(Front) == SMALLEST_BATCH_BYTES, "the fields leave no gaps");

/* Return 32 bits that change with every bit of offset and epoch. */
static inline uint32_t fold(int64_t offset, int32_t leader_epoch)
{
    return (uint32_t)offset ^ (uint32_t)((uint64_t)offset >> 32) ^ (uint32_t)leader_epoch;
}

/* Return the size of a batch with these lengths of key and value. */
static inline uint64_t size_of_one(uint64_t key_size, uint64_t value_size)
{
    return (SMALLEST_BATCH_BYTES + key_size + value_size + 7) & ~UINT64_C(7);
}

PyObject *read_ones(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *walk_ones(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *batch_starts(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *crc32c_many(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *join_parts(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
