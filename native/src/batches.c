/* Reading batches. Nothing that a buffer says is believed before it is bounded and, where records are made of it,
 * checked against its checksum. The buffer may be a mapped file that another process changes meanwhile: what is
 * returned as a record was copied first, and the copy was checked. */

#include "batches.h"

#include "checksum.h"
#include "objects.h"

#define RUN_BYTES (64 * 1024)

/* Say whether the fields that all batches of one record share are as they should be. */
static int is_one(const Front *one)
{
    return one->base_sequence == -1 && one->record_count == 1 && one->last_offset_delta == 0 &&
           one->producer_epoch == -1 && (one->flags & ~LOG_APPEND_TIME) == 0 && one->forms == 0 &&
           one->key_nulls <= ALL_NULL && one->value_nulls <= ALL_NULL && one->has_headers == 0;
}

/* Say whether a batch of one record that may take `room` bytes is complete, and its lengths fill it. */
static int fits(const Front *one, uint64_t room)
{
    return one->magic == MAGIC && one->producer_id == -1 && one->size <= room &&
           one->size == size_of_one(one->key_size, one->value_size) && !(one->key_nulls && one->key_size) &&
           !(one->value_nulls && one->value_size);
}

/* Say whether the bytes of a batch, whose fields are `one`, have its checksum. */
static int is_sound(const Front *one, const uint8_t *bytes)
{
    uint32_t crc = crc32c(0, bytes + STAMP_BYTES, one->size - STAMP_BYTES);
    return (crc ^ fold(one->offset, one->leader_epoch)) == one->checksum;
}

static PyObject *bytes_or_none(int is_null, const uint8_t *data, uint32_t size)
{
    return is_null ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)data, size);
}

/* The type of records, and what all records of a run share. */
typedef struct {
    PyTypeObject *type;
    newfunc new_tuple;    /* tuple.__new__ */
    int has_only_fields;  /* so that a new one can be filled as it is: what else a tuple has must be prepared */
    PyObject *no_headers;
} Maker;

/* Learn about a type of records; returns 0 after an error. */
static int get_maker(Maker *maker, PyObject *type)
{
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "read_ones() makes tuples");
        return 0;
    }
    PyObject *size = PyObject_GetAttrString(type, "__basicsize__");
    if (size == NULL)
        return 0;
    maker->type = (PyTypeObject *)type;
    maker->new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    /* not from 3.14 on, whose tuples have a hash besides, nor on 3.11 if instances have a dictionary */
    maker->has_only_fields = PyLong_AsSize_t(size) == sizeof(PyVarObject);
    Py_DECREF(size);
    maker->no_headers = PyErr_Occurred() ? NULL : PyTuple_New(0);
    return maker->no_headers != NULL;
}

/* Return a new record: what tuple.__new__(Record, fields) returns. */
static PyObject *new_record(const Maker *maker, const Front *one, const uint8_t *contents)
{
    PyObject *fields[5] = {
        PyLong_FromLongLong(one->offset),
        PyLong_FromLongLong(one->timestamp),
        bytes_or_none(one->key_nulls, contents, one->key_size),
        bytes_or_none(one->value_nulls, contents + one->key_size, one->value_size),
        Py_NewRef(maker->no_headers),
    };
    PyObject *record = NULL;
    if (fields[0] && fields[1] && fields[2] && fields[3]) /* measured: half as long as tuple.__new__ */
        record = maker->has_only_fields ? PyType_GenericAlloc(maker->type, 5) : PyTuple_New(5);
    for (int field = 0; field < 5; field++)
        if (record == NULL)
            Py_XDECREF(fields[field]);
        else
            PyTuple_SetItem(record, field, fields[field]); /* cannot fail: it is new, and long enough */
    if (record == NULL || maker->has_only_fields)
        return record;
    PyObject *args = Py_BuildValue("(N)", record);
    record = args == NULL ? NULL : maker->new_tuple(maker->type, args, NULL);
    Py_XDECREF(args);
    return record;
}

/* Add the records of a copied chunk to a list; returns the bytes they take, -1 after an error. */
static Py_ssize_t add_records(PyObject *records, const Maker *maker, const uint8_t *chunk, size_t size,
                              int64_t end_offset)
{
    size_t place = 0;
    Front one;
    int64_t expected = -1;
    int32_t leader_epoch = 0; /* of the first, as its flags */
    uint16_t flags = 0;
    while (size - place >= sizeof one) {
        memcpy(&one, chunk + place, sizeof one);
        if (!is_one(&one) || !fits(&one, size - place) || one.offset < 0 || one.offset >= end_offset)
            break;
        if (place == 0)
            leader_epoch = one.leader_epoch, flags = one.flags;
        else if (one.offset != expected || one.leader_epoch != leader_epoch || one.flags != flags)
            break;
        if (!is_sound(&one, chunk + place))
            break;
        PyObject *record = new_record(maker, &one, chunk + place + sizeof one);
        int failed = record == NULL || PyList_Append(records, record) < 0;
        Py_XDECREF(record);
        if (failed)
            return -1;
        place += one.size;
        expected = one.offset + 1;
    }
    return (Py_ssize_t)place;
}

/* read_ones(Record, view, position, limit, end_offset): as in commitlog/batches/single.py */
PyObject *read_ones(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!check_count("read_ones", count, 5))
        return NULL;
    Py_ssize_t position = PyNumber_AsSsize_t(args[2], PyExc_OverflowError);
    Py_ssize_t limit = PyNumber_AsSsize_t(args[3], PyExc_OverflowError);
    int64_t end_offset = clamped(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (end_offset > LAST_OFFSET)
        end_offset = LAST_OFFSET + 1;
    Py_buffer view;
    Maker maker;
    if (!get_maker(&maker, args[0]))
        return NULL;
    if (PyObject_GetBuffer(args[1], &view, PyBUF_SIMPLE) < 0) {
        Py_DECREF(maker.no_headers);
        return NULL;
    }
    PyObject *records = PyList_New(0);
    uint8_t *chunk = NULL;
    Py_ssize_t read = 0, end = limit < view.len ? limit : view.len;
    Py_ssize_t size = position < 0 || end < position ? 0 : end - position;
    if (records != NULL && size >= SMALLEST_BATCH_BYTES) {
        const uint8_t *start = (const uint8_t *)view.buf + position;
        Front one;
        memcpy(&one, start, sizeof one);
        if (is_one(&one)) { /* before more is copied */
            size = size < RUN_BYTES ? size : RUN_BYTES;
            chunk = PyMem_Malloc((size_t)size);
            if (chunk == NULL) {
                PyErr_NoMemory();
                read = -1;
            } else {
                memcpy(chunk, start, (size_t)size);
                read = add_records(records, &maker, chunk, (size_t)size, end_offset);
            }
        }
    }
    PyMem_Free(chunk);
    PyBuffer_Release(&view);
    Py_DECREF(maker.no_headers);
    PyObject *found = records == NULL || read < 0 ? NULL : Py_BuildValue("On", records, position + read);
    Py_XDECREF(records);
    return found;
}

/* Append (offset, place, timestamp) to a list; returns 0 after an error. */
static int add_place(PyObject *places, int64_t offset, Py_ssize_t place, int64_t timestamp)
{
    PyObject *one = Py_BuildValue("LnL", (long long)offset, place, (long long)timestamp);
    int failed = one == NULL || PyList_Append(places, one) < 0;
    Py_XDECREF(one);
    return !failed;
}

/* walk_ones(view, place, end, offset, epoch, places): as in commitlog/batches/single.py */
PyObject *walk_ones(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!check_count("walk_ones", count, 6))
        return NULL;
    Py_ssize_t place = PyNumber_AsSsize_t(args[1], PyExc_OverflowError);
    Py_ssize_t end = PyNumber_AsSsize_t(args[2], PyExc_OverflowError);
    int64_t offset = PyLong_AsLongLong(args[3]), epoch = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (place < 0 || !PyList_Check(args[5])) {
        PyErr_SetString(PyExc_ValueError, "walk_ones() takes a place of 0 or more, and a list");
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *bytes = view.buf;
    int good = 1;
    end = end < view.len ? end : view.len;
    while (good && place < end && end - place >= SMALLEST_BATCH_BYTES) {
        Front one;
        memcpy(&one, bytes + place, sizeof one);
        if (!is_one(&one) || !fits(&one, (uint64_t)(end - place)) || one.offset != offset || offset > LAST_OFFSET ||
            one.leader_epoch != epoch || one.timestamp != one.max_timestamp || !is_sound(&one, bytes + place))
            break;
        good = add_place(args[5], offset, place, one.timestamp);
        place += one.size;
        offset++;
    }
    PyBuffer_Release(&view);
    return good ? Py_BuildValue("nL", place, (long long)offset) : NULL;
}

/* batch_starts(view, start, end): where batches start that follow one another and end before `end`, as the bytes of
 * an array of int64 */
PyObject *batch_starts(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!check_count("batch_starts", count, 3))
        return NULL;
    Py_ssize_t start = PyNumber_AsSsize_t(args[1], PyExc_OverflowError);
    Py_ssize_t end = PyNumber_AsSsize_t(args[2], PyExc_OverflowError);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *bytes = view.buf;
    int64_t *starts = NULL;
    size_t found = 0, room = 0;
    PyObject *result = NULL;
    end = end < view.len ? end : view.len;
    while (start >= 0 && end - start >= SMALLEST_BATCH_BYTES) {
        uint32_t magic, size;
        memcpy(&magic, bytes + start + STAMP_BYTES, 4);
        memcpy(&size, bytes + start + STAMP_BYTES + 4, 4);
        if (magic != MAGIC || size < SMALLEST_BATCH_BYTES || size > (uint64_t)(end - start) || size & 7)
            break;
        if (found == room) {
            room = room ? 2 * room : 256;
            int64_t *more = PyMem_Realloc(starts, room * sizeof *starts);
            if (more == NULL) {
                PyErr_NoMemory();
                goto done;
            }
            starts = more;
        }
        starts[found++] = start;
        start += size;
    }
    result = PyBytes_FromStringAndSize((const char *)starts, (Py_ssize_t)(found * sizeof *starts));
done:
    PyMem_Free(starts);
    PyBuffer_Release(&view);
    return result;
}

/* A buffer, and where its parts start and end: two arrays of int64. */
typedef struct {
    Py_buffer buffers[3];
    Py_ssize_t count;
    Py_ssize_t total; /* bytes of all parts; PY_SSIZE_T_MAX if they are more, as parts may overlap */
} Parts;

static void release_parts(Parts *parts)
{
    for (int held = 0; held < 3; held++)
        PyBuffer_Release(&parts->buffers[held]);
}

/* Return the bytes of a part. */
static const char *part_at(const Parts *parts, Py_ssize_t part, size_t *size)
{
    int64_t start, end;
    memcpy(&start, (const char *)parts->buffers[1].buf + 8 * part, 8);
    memcpy(&end, (const char *)parts->buffers[2].buf + 8 * part, 8);
    *size = (size_t)(end - start);
    return (const char *)parts->buffers[0].buf + start;
}

/* Say whether every part lies in the buffer; an error if not. */
static int parts_are_sound(Parts *parts)
{
    parts->total = 0;
    if (parts->buffers[2].len != parts->buffers[1].len || parts->buffers[1].len % 8) {
        PyErr_SetString(PyExc_ValueError, "as many starts as ends are needed");
        return 0;
    }
    for (Py_ssize_t part = 0; part < parts->count; part++) {
        int64_t start, end;
        memcpy(&start, (const char *)parts->buffers[1].buf + 8 * part, 8);
        memcpy(&end, (const char *)parts->buffers[2].buf + 8 * part, 8);
        if (start < 0 || end < start || end > parts->buffers[0].len) {
            PyErr_Format(PyExc_ValueError, "[%lld, %lld) does not lie in %zd bytes", (long long)start,
                         (long long)end, parts->buffers[0].len);
            return 0;
        }
        parts->total = end - start > PY_SSIZE_T_MAX - parts->total ? PY_SSIZE_T_MAX : parts->total + (end - start);
    }
    return 1;
}

/* Get the parts of a buffer from three arguments; returns 0 after an error. The caller must see to it that no other
 * thread changes the two arrays. */
static int get_parts(const char *name, PyObject *const *args, Py_ssize_t count, Parts *parts)
{
    if (!check_count(name, count, 3))
        return 0;
    int held = 0;
    while (held < 3 && PyObject_GetBuffer(args[held], &parts->buffers[held], PyBUF_SIMPLE) == 0)
        held++;
    if (held == 3) {
        parts->count = parts->buffers[1].len / 8;
        if (parts_are_sound(parts))
            return 1;
    }
    while (held--)
        PyBuffer_Release(&parts->buffers[held]);
    return 0;
}

/* crc32c_many(view, starts, ends): the crc32c of each part of a buffer, as the bytes of an array of uint32 */
PyObject *crc32c_many(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Parts parts;
    if (!get_parts("crc32c_many", args, count, &parts))
        return NULL;
    PyObject *result = PyBytes_FromStringAndSize(NULL, parts.count * 4);
    char *crcs = result == NULL ? NULL : PyBytes_AsString(result);
    PyThreadState *thread = let_others_run(parts.total);
    for (Py_ssize_t part = 0; crcs != NULL && part < parts.count; part++) {
        size_t size;
        const char *start = part_at(&parts, part, &size);
        uint32_t crc = crc32c(0, start, size);
        memcpy(crcs + 4 * part, &crc, 4);
    }
    go_on(thread);
    release_parts(&parts);
    return result;
}

/* join_parts(view, starts, ends): the bytes of all parts of a buffer, one after another */
PyObject *join_parts(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Parts parts;
    if (!get_parts("join_parts", args, count, &parts))
        return NULL;
    PyObject *result = parts.total == PY_SSIZE_T_MAX ? PyErr_NoMemory() : PyBytes_FromStringAndSize(NULL, parts.total);
    char *to = result == NULL ? NULL : PyBytes_AsString(result);
    size_t size;
    PyThreadState *thread = let_others_run(parts.total);
    for (Py_ssize_t part = 0; to != NULL && part < parts.count; part++) {
        const char *start = part_at(&parts, part, &size);
        memcpy(to, start, size);
        to += size;
    }
    go_on(thread);
    release_parts(&parts);
    return result;
}
