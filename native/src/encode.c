/* Writing a small batch in one piece: what pure_encode() in commitlog/batches/encode.py does for plain records without
 * headers that share one timestamp. Everything else is left to it, and with that every error. */

#include "encode.h"

#include "batches.h"
#include "checksum.h"
#include "objects.h"
#include "strings.h"

#define MOST_RECORDS 1024
#define MOST_BYTES (128 * 1024) /* of all keys, and of all values: other threads wait while they are copied */

/* Get an int between two others; returns 0 if it is none. */
static int get_number(PyObject *number, int64_t least, int64_t most, int64_t *found)
{
    int overflow;
    if (!PyLong_CheckExact(number))
        return 0;
    *found = PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow && *found >= least && *found <= most;
}

static int get_producer(PyObject *producer, Front *front)
{
    int64_t id, epoch, sequence;
    if (!PyTuple_CheckExact(producer) || PyTuple_Size(producer) != 3 ||
        !get_number(PyTuple_GetItem(producer, 0), INT64_MIN, INT64_MAX, &id) ||
        !get_number(PyTuple_GetItem(producer, 1), INT16_MIN, INT16_MAX, &epoch) ||
        !get_number(PyTuple_GetItem(producer, 2), INT32_MIN, INT32_MAX, &sequence))
        return 0;
    front->producer_id = id;
    front->producer_epoch = (int16_t)epoch;
    front->base_sequence = (int32_t)sequence;
    return 1;
}

static Py_ssize_t padded(Py_ssize_t size)
{
    return (size + 7) & ~(Py_ssize_t)7;
}

/* Write zeros after a column of this size, up to the next multiple of 8; returns where they end. */
static char *write_padding(char *to, Py_ssize_t size)
{
    size_t more = (size_t)(padded(size) - size);
    memset(to, 0, more);
    return to + more;
}

/* Write a column, its strings to `blob`; returns where its lengths and its bitmap end. */
static char *write_column(const Strings *strings, char *lengths, char *blob)
{
    char *bitmap = write_padding(lengths + strings->length_bytes, strings->length_bytes);
    write_strings(strings, lengths, bitmap, blob);
    return write_padding(bitmap + strings->bitmap_bytes, strings->bitmap_bytes);
}

/* Return the size of what stands before the strings of a column. */
static Py_ssize_t index_bytes(const Strings *strings)
{
    return padded(strings->length_bytes) + padded(strings->bitmap_bytes);
}

/* Return the batch without its stamp; the columns decide the rest of its front. */
static PyObject *written(Front *front, const Strings *keys, const Strings *values)
{
    Py_ssize_t blobs_at = SMALLEST_BATCH_BYTES + index_bytes(keys) + index_bytes(values);
    Py_ssize_t used = blobs_at + keys->blob_bytes + values->blob_bytes;
    front->size = (uint32_t)padded(used);
    front->record_count = (uint32_t)values->count;
    front->last_offset_delta = (uint32_t)values->count - 1;
    front->forms = (uint32_t)keys->form | (uint32_t)values->form << 8; /* times and offsets are constant */
    front->key_nulls = (uint8_t)keys->nulls;
    front->value_nulls = (uint8_t)values->nulls;
    front->key_size = (uint32_t)keys->constant;
    front->value_size = (uint32_t)values->constant;
    PyObject *body = PyBytes_FromStringAndSize(NULL, padded(used) - STAMP_BYTES);
    if (body == NULL)
        return NULL;
    char *start = PyBytes_AsString(body), *blob = start + blobs_at - STAMP_BYTES;
    memcpy(start, (const char *)front + STAMP_BYTES, sizeof *front - STAMP_BYTES);
    char *value_lengths = write_column(keys, start + sizeof *front - STAMP_BYTES, blob);
    write_column(values, value_lengths, blob + keys->blob_bytes);
    write_padding(start + used - STAMP_BYTES, used);
    return body;
}

/* encode_plain(values, keys, timestamp, flags, producer, keyed, max_message_bytes): the crc32c and the bytes of a batch
 * without its stamp, and the count of its records; or None. No Python code runs here, so nothing changes the records
 * meanwhile. */
PyObject *encode_plain(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    int64_t timestamp, flags, most_bytes;
    Front front = {.magic = MAGIC};
    Strings values, keys = {.nulls = ALL_NULL};
    if (!check_count("encode_plain", count, 7))
        return NULL;
    if (!get_number(args[2], 0, INT64_MAX, &timestamp) || !get_number(args[3], 0, UINT16_MAX, &flags) ||
        flags & (CODEC_MASK | DELETE_HORIZON) || !get_producer(args[4], &front) ||
        !get_number(args[6], 0, INT64_MAX, &most_bytes))
        Py_RETURN_NONE;
    if (!measure_strings(args[0], MOST_RECORDS, MOST_BYTES, &values) || values.count == 0)
        Py_RETURN_NONE;
    if (args[1] != Py_None &&
        (!measure_strings(args[1], MOST_RECORDS, MOST_BYTES, &keys) || keys.count != values.count))
        Py_RETURN_NONE;
    if ((keys.nulls != NO_NULLS && args[5] != Py_False) || keys.longest + values.longest > most_bytes)
        Py_RETURN_NONE; /* a required key is missing, or a record may be too large */
    front.timestamp = front.max_timestamp = timestamp;
    front.flags = (uint16_t)flags;
    PyObject *body = written(&front, &keys, &values);
    if (body == NULL)
        return NULL;
    uint32_t crc = crc32c(0, PyBytes_AsString(body), front.size - STAMP_BYTES);
    return Py_BuildValue("INn", (unsigned int)crc, body, values.count);
}
