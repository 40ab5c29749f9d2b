/* Appending one record to a partition: what Appender.append() in commitlog/partitions/appender.py does for plain records.
 *
 * It packs the record and computes its checksum. If the record goes into the mapped tail of the segment and nothing else
 * is to be done, it also stores and publishes it; otherwise (a sync, a due index entry, a segment to roll, waiting
 * readers, a lock that is held, no tail) it calls Appender._store(). What is no plain record is left to
 * Appender.append() altogether.
 *
 * It takes no lock. It looks whether the partition's lock is free, and from there to its last store it holds the
 * interpreter's lock, because it runs no Python code and allocates nothing that the garbage collector looks at: no other
 * thread can take the partition's lock meanwhile, and no signal handler runs. So an append is complete or has not begun.
 *
 * What can fail comes before the first store: buffers are held and the new numbers exist by then.
 */

#include "append.h"

#include <time.h>

#include "batches.h"
#include "checksum.h"
#include "objects.h"

/* The attributes that it looks at. */
#define NAMES(name)                                                                                                     \
    name(rules) name(waiters) name(count) name(counts_records) name(lock) name(locked) name(writer) name(next_offset)   \
    name(append_refusal) name(leader_epoch) name(words) name(segment) name(size_bytes) name(lean_end) name(roll_after)  \
    name(quiet_position) name(tail) name(tail_start) name(tail_end) name(max_timestamp) name(shapes) name(keyed)        \
    name(log_append_time) name(flags) name(max_message_bytes) name(key) name(headers) name(timestamp) name(sync)          \
    name(time_ns) name(waited_for) name(notify_of_append)

static struct {
#define DECLARED(name) PyObject *name;
    NAMES(DECLARED)
} names;

static PyTypeObject *appending_type;
static Clock clock_ns; /* time.time_ns */

/* What one partition's append() needs; it is the `self` of that function. */
typedef struct {
    PyObject_HEAD
    PyObject *slow;         /* Appender.append */
    PyObject *locked_store; /* Appender._store */
    PyObject *state;        /* LogState */
    PyTypeObject *lock_type;
    Py_ssize_t end_word, next_word; /* where the state page has the end of the segment and next_offset */
    PyObject *lock, *locked;        /* the partition's lock when it was last looked at, and its method */
    PyObject *rules;                /* its rules at that time, and what they say: */
    int keyed, log_append_time, flags;
    int64_t most_bytes; /* of key and value together; -1 if its records are compressed */
} Appending;

/* --- attributes */

/* Return whether an attribute is true; -1 after an error. */
static int get_truth(PyObject *owner, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(owner, name);
    if (found == NULL)
        return -1;
    int truth = found == Py_True ? 1 : found == Py_False ? 0 : PyObject_IsTrue(found);
    Py_DECREF(found);
    return truth;
}

static void replace(PyObject **held, PyObject *by)
{
    PyObject *old = *held;
    *held = by;
    Py_XDECREF(old);
}

/* Learn what the rules say, if they are other ones than before. */
static int learn_rules(Appending *self)
{
    PyObject *rules = PyObject_GetAttr(self->state, names.rules);
    if (rules == NULL)
        return 0;
    if (rules == self->rules) {
        Py_DECREF(rules);
        return 1;
    }
    int64_t flags, most_bytes;
    PyObject *shapes = PyObject_GetAttr(rules, names.shapes);
    int known = shapes != NULL && (self->keyed = get_truth(rules, names.keyed)) >= 0 &&
                (self->log_append_time = get_truth(rules, names.log_append_time)) >= 0 &&
                get_int64(rules, names.flags, &flags) && get_int64(rules, names.max_message_bytes, &most_bytes);
    if (known) {
        self->flags = (int)flags;
        self->most_bytes = shapes == Py_None ? -1 : most_bytes;
    }
    Py_XDECREF(shapes);
    replace(&self->rules, known ? rules : NULL);
    if (!known)
        Py_DECREF(rules);
    return known;
}

/* Return 1 if no thread holds the partition's lock, 0 if one may, -1 after an error. */
static int lock_is_free(Appending *self)
{
    PyObject *lock = PyObject_GetAttr(self->state, names.lock);
    if (lock == NULL)
        return -1;
    if (lock != self->lock) {
        PyObject *locked = Py_TYPE(lock) == self->lock_type ? PyObject_GetAttr(lock, names.locked) : NULL;
        if (locked == NULL) {
            Py_DECREF(lock);
            return PyErr_Occurred() ? -1 : 0; /* a lock between processes has to be taken */
        }
        replace(&self->lock, lock);
        replace(&self->locked, locked);
    } else
        Py_DECREF(lock);
    PyObject *held = PyObject_CallNoArgs(self->locked);
    if (held == NULL)
        return -1;
    int is_free = held == Py_False;
    Py_DECREF(held);
    return is_free;
}

/* --- the append */

typedef struct {
    PyObject *value, *key; /* bytes or None */
    int64_t timestamp;
} Plain;

static const char *contents(PyObject *bytes, size_t *size)
{
    if (bytes == Py_None) {
        *size = 0;
        return "";
    }
    *size = (size_t)PyBytes_Size(bytes);
    return PyBytes_AsString(bytes);
}

/* Fill in all fields but the stamp, and return the crc32c of the batch. */
static uint32_t fill(Front *one, const Plain *plain, uint32_t size, int flags)
{
    static const char padding[8];
    size_t key_size, value_size;
    const char *key = contents(plain->key, &key_size), *value = contents(plain->value, &value_size);
    *one = (Front){
        .magic = MAGIC,
        .size = size,
        .producer_id = -1,
        .timestamp = plain->timestamp,
        .max_timestamp = plain->timestamp,
        .base_sequence = -1,
        .record_count = 1,
        .producer_epoch = -1,
        .flags = (uint16_t)flags,
        .key_nulls = plain->key == Py_None,
        .value_nulls = plain->value == Py_None,
        .key_size = (uint32_t)key_size,
        .value_size = (uint32_t)value_size,
    };
    uint32_t crc = crc32c(0, (const uint8_t *)one + STAMP_BYTES, sizeof *one - STAMP_BYTES);
    crc = crc32c(crc, key, key_size);
    crc = crc32c(crc, value, value_size);
    return crc32c(crc, padding, size - sizeof *one - key_size - value_size);
}

/* Write the batch without its stamp. */
static void write_body(uint8_t *to, const Front *one, const Plain *plain)
{
    size_t key_size, value_size, front = sizeof *one - STAMP_BYTES;
    const char *key = contents(plain->key, &key_size), *value = contents(plain->value, &value_size);
    memcpy(to, (const uint8_t *)one + STAMP_BYTES, front);
    memcpy(to + front, key, key_size);
    memcpy(to + front + key_size, value, value_size);
    memset(to + front + key_size + value_size, 0, one->size - sizeof *one - key_size - value_size);
}

/* Where a record goes. */
typedef struct {
    PyObject *writer, *segment;
    int64_t position, end;    /* in the segment */
    int64_t tail_start;       /* of the part that is mapped */
    int64_t leader_epoch;
} Place;

/* Look whether the record goes into the mapped tail and nothing else is due; -1 after an error. */
static int look(Appending *self, const Plain *plain, uint32_t size, Place *place)
{
    PyObject *writer = place->writer;
    int64_t lean_end, roll_after, quiet_position, tail_end, max_timestamp;
    if (!get_int64(place->segment, names.size_bytes, &place->position) ||
        !get_int64(writer, names.tail_end, &tail_end))
        return -1;
    place->end = place->position + size;
    if (place->position < 0 || place->end > tail_end)
        return 0;
    if (!get_int64(writer, names.lean_end, &lean_end) || !get_int64(writer, names.quiet_position, &quiet_position) ||
        !get_int64(writer, names.roll_after, &roll_after) ||
        !get_int64(writer, names.max_timestamp, &max_timestamp) ||
        !get_int64(writer, names.tail_start, &place->tail_start) ||
        !get_int64(self->state, names.leader_epoch, &place->leader_epoch))
        return -1;
    return place->end <= lean_end && place->position <= quiet_position && place->position >= place->tail_start &&
           plain->timestamp <= roll_after && plain->timestamp <= max_timestamp &&
           place->leader_epoch == (int32_t)place->leader_epoch;
}

/* What is held during the stores. */
typedef struct {
    Py_buffer tail, words;
    PyObject *offset, *next_offset, *end;
} Held;

static void let_go(Held *held)
{
    PyBuffer_Release(&held->tail); /* does nothing with a buffer that was not got */
    PyBuffer_Release(&held->words);
    Py_XDECREF(held->offset);
    Py_XDECREF(held->next_offset);
    Py_XDECREF(held->end);
}

/* Get the buffer that an attribute is; 0 if it is none, -1 after an error. */
static int hold_buffer(PyObject *owner, PyObject *name, Py_buffer *buffer)
{
    PyObject *found = PyObject_GetAttr(owner, name);
    int held = found == NULL ? -1 : PyObject_CheckBuffer(found);
    if (held > 0 && PyObject_GetBuffer(found, buffer, PyBUF_WRITABLE) < 0)
        held = -1;
    Py_XDECREF(found);
    return held;
}

/* Get everything that the stores need, so that none of them can fail; 0 if Appender._store() has to do them, -1 after
 * an error. */
static int hold(Appending *self, const Place *place, int64_t *offset, Held *held)
{
    int is_held = hold_buffer(place->writer, names.tail, &held->tail); /* 0: a disk that tests made up */
    if (is_held > 0)
        is_held = hold_buffer(self->state, names.words, &held->words);
    if (is_held <= 0)
        return is_held;
    if ((held->offset = PyObject_GetAttr(self->state, names.next_offset)) == NULL)
        return -1;
    *offset = clamped(held->offset);
    if (*offset == -1 && PyErr_Occurred())
        return -1;
    Py_ssize_t last_word = self->end_word > self->next_word ? self->end_word : self->next_word;
    if (*offset < 0 || *offset > LAST_OFFSET || place->end - place->tail_start > held->tail.len ||
        held->words.len / 8 <= last_word)
        return 0;
    held->end = PyLong_FromLongLong(place->end);
    held->next_offset = PyLong_FromLongLong(*offset + 1);
    return held->end == NULL || held->next_offset == NULL ? -1 : 1;
}

/* Store the record, if it goes into the mapped tail and nothing else is due. Returns 1 and the offset if it did, 0 if
 * that is for Appender._store(), -1 after an error; then nothing has changed. */
static int store(Appending *self, const Plain *plain, Front *one, uint32_t crc, Place *place, PyObject **offset_object)
{
    int64_t offset;
    Held held = {0};
    int done = look(self, plain, one->size, place);
    if (done <= 0)
        return done;
    done = hold(self, place, &offset, &held);
    if (done > 0) {
        one->offset = offset;
        one->leader_epoch = (int32_t)place->leader_epoch;
        one->checksum = crc ^ fold(offset, one->leader_epoch);
        uint8_t *to = (uint8_t *)held.tail.buf + (place->position - place->tail_start);
        memcpy(to, one, STAMP_BYTES);
        write_body(to + STAMP_BYTES, one, plain);
        /* the second cannot fail: it is a slot */
        if (PyObject_SetAttr(place->segment, names.size_bytes, held.end) < 0 ||
            PyObject_SetAttr(self->state, names.next_offset, held.next_offset) < 0)
            done = -1;
    }
    if (done > 0) {
        int64_t *word = held.words.buf; /* readers in other processes see each store whole, and in this order */
        __atomic_store_n(word + self->end_word, place->end, __ATOMIC_RELEASE);
        __atomic_store_n(word + self->next_word, offset + 1, __ATOMIC_RELEASE);
        *offset_object = Py_NewRef(held.offset);
    }
    let_go(&held);
    return done;
}

/* Find out the record's timestamp and its size in a batch; returns 0 if it is for the slow path, -1 after an error. */
static int measure(Appending *self, Plain *plain, PyObject *timestamp, uint32_t *size)
{
    if (!learn_rules(self))
        return -1;
    if (self->most_bytes < 0 || (self->keyed && plain->key == Py_None))
        return 0;
    if (timestamp == NULL || self->log_append_time) {
        int is_real = is_real_clock(&clock_ns, clock_ns.globals, names.time_ns);
        if (is_real <= 0)
            return is_real;
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        plain->timestamp = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    } else {
        int overflow;
        plain->timestamp = PyLong_CheckExact(timestamp) ? PyLong_AsLongLongAndOverflow(timestamp, &overflow) : -1;
        if (plain->timestamp < 0)
            return 0;
    }
    size_t key_size, value_size;
    contents(plain->key, &key_size);
    contents(plain->value, &value_size);
    if (key_size > (size_t)self->most_bytes || value_size > (size_t)self->most_bytes - key_size)
        return 0;
    uint64_t found = size_of_one(key_size, value_size);
    *size = (uint32_t)found;
    return found <= INT32_MAX;
}

/* Return 1 and the offset if the record was stored, 0 if that is for Appender._store(), -1 after an error. */
static int try_store(Appending *self, const Plain *plain, Front *one, uint32_t crc, PyObject **offset)
{
    int is_free = lock_is_free(self);
    if (is_free <= 0)
        return is_free;
    int counted = get_truth(self->state, names.counts_records);
    PyObject *waiters = counted < 0 ? NULL : PyObject_GetAttr(self->state, names.waiters);
    int waited = waiters == NULL ? -1 : get_truth(waiters, names.count);
    Py_XDECREF(waiters);
    PyObject *refusal = waited < 0 ? NULL : PyObject_GetAttr(self->state, names.append_refusal);
    if (refusal == NULL)
        return -1;
    int refused = refusal != Py_None;
    Py_DECREF(refusal);
    if (counted || waited || refused)
        return 0;
    int done = -1;
    Place place = {.writer = PyObject_GetAttr(self->state, names.writer)};
    if (place.writer != NULL)
        place.segment = PyObject_GetAttr(place.writer, names.segment);
    if (place.segment != NULL)
        done = store(self, plain, one, crc, &place, offset);
    Py_XDECREF(place.segment);
    Py_XDECREF(place.writer);
    return done;
}

/* Call Appender._store(crc, body, size, timestamp, sync). */
static PyObject *call_store(Appending *self, const Plain *plain, const Front *one, uint32_t crc, PyObject *sync)
{
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)one->size - STAMP_BYTES);
    if (body == NULL)
        return NULL;
    write_body((uint8_t *)PyBytes_AsString(body), one, plain);
    PyObject *crc_object = PyLong_FromUnsignedLong(crc), *size = PyLong_FromUnsignedLong(one->size);
    PyObject *timestamp = PyLong_FromLongLong(plain->timestamp), *offset = NULL;
    if (crc_object != NULL && size != NULL && timestamp != NULL)
        offset = PyObject_CallFunctionObjArgs(self->locked_store, crc_object, body, size, timestamp, sync, NULL);
    Py_XDECREF(timestamp);
    Py_XDECREF(size);
    Py_XDECREF(crc_object);
    Py_DECREF(body);
    return offset;
}

static int is_plain(PyObject *content)
{
    return content == Py_None || PyBytes_CheckExact(content);
}

/* Read the arguments; returns 0 if they are for the slow path. */
static int read_arguments(PyObject *const *args, Py_ssize_t count, PyObject *keywords, Plain *plain,
                          PyObject **timestamp, PyObject **sync)
{
    if (count != 1 || !is_plain(args[0]))
        return 0;
    plain->value = args[0];
    plain->key = Py_None;
    *timestamp = NULL;
    *sync = Py_False;
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t number = 0; number < named; number++) {
        PyObject *name = PyTuple_GetItem(keywords, number), *given = args[count + number];
        if (name == names.key && is_plain(given))
            plain->key = given;
        else if (name == names.timestamp)
            *timestamp = given == Py_None ? NULL : given;
        else if (name == names.headers && PyTuple_CheckExact(given) && PyTuple_Size(given) == 0)
            continue;
        else if (name == names.sync)
            *sync = given;
        else
            return 0;
    }
    return 1;
}

/* Wake the readers in other processes, if one waits, after the record was published; returns 0 after an error. */
static int wake_readers(Appending *self)
{
    Py_buffer flag;
    PyObject *waited_for = PyObject_GetAttr(self->state, names.waited_for);
    int waits = -1;
    if (waited_for != NULL && PyObject_GetBuffer(waited_for, &flag, PyBUF_SIMPLE) == 0) {
        __atomic_thread_fence(__ATOMIC_SEQ_CST); /* a reader sets the flag first, and then looks for records */
        waits = flag.len >= 4 && __atomic_load_n((uint32_t *)flag.buf, __ATOMIC_RELAXED) != 0;
        PyBuffer_Release(&flag);
    }
    Py_XDECREF(waited_for);
    if (waits <= 0)
        return waits == 0;
    PyObject *done = PyObject_CallMethodObjArgs(self->state, names.notify_of_append, NULL);
    Py_XDECREF(done);
    return done != NULL;
}

static PyObject *append(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Appending *self = (Appending *)object;
    Plain plain;
    Front one;
    uint32_t size;
    PyObject *timestamp, *sync, *offset = NULL;
    if (self->state == NULL)
        return was_cleared("the partition");
    if (!read_arguments(args, count, keywords, &plain, &timestamp, &sync))
        return call_with(self->slow, args, count, keywords);
    int done = measure(self, &plain, timestamp, &size);
    if (done == 0)
        return call_with(self->slow, args, count, keywords);
    if (done < 0)
        return NULL;
    uint32_t crc = fill(&one, &plain, size, self->flags);
    done = sync == Py_False ? try_store(self, &plain, &one, crc, &offset) : 0;
    if (done > 0 && !wake_readers(self))
        Py_CLEAR(offset);
    if (done)
        return offset;
    return call_store(self, &plain, &one, crc, sync);
}

static PyMethodDef append_method = {
    "append",
    FAST(append),
    METH_FASTCALL | METH_KEYWORDS,
    "append($self, value, *, key=None, headers=(), timestamp=None, sync=False)\n--\n\n"
    "Append a record and return its offset once readers see it, or with `sync` once it is durable.",
};

/* --- the object behind it */

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Appending *self = (Appending *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->slow);
    Py_VISIT(self->locked_store);
    Py_VISIT(self->state);
    Py_VISIT(self->lock_type);
    Py_VISIT(self->lock);
    Py_VISIT(self->locked);
    Py_VISIT(self->rules);
    return 0;
}

static int clear(PyObject *object)
{
    Appending *self = (Appending *)object;
    Py_CLEAR(self->state); /* first: append() looks at it */
    Py_CLEAR(self->slow);
    Py_CLEAR(self->locked_store);
    Py_CLEAR(self->lock_type);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->locked);
    Py_CLEAR(self->rules);
    return 0;
}

static void dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "What a partition's append() needs."},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "commitlog_speedups.Appending",
    .basicsize = sizeof(Appending),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

int append_prepare(PyObject *module)
{
#define INTERNED(name)                                                                                                  \
    if (names.name == NULL && (names.name = PyUnicode_InternFromString(#name)) == NULL)                                 \
        return 0;
    NAMES(INTERNED)
    if (!learn_clock(&clock_ns, names.time_ns))
        return 0;
    if (appending_type == NULL)
        appending_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return appending_type != NULL;
}

/* single_append(append, store, state, lock_type, end_word, next_word): a function that does what `append` does */
PyObject *single_append(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!check_count("single_append", count, 6))
        return NULL;
    Py_ssize_t end_word = PyNumber_AsSsize_t(args[4], PyExc_OverflowError);
    Py_ssize_t next_word = PyNumber_AsSsize_t(args[5], PyExc_OverflowError);
    if (PyErr_Occurred())
        return NULL;
    if (!PyType_Check(args[3]) || end_word < 0 || next_word < 0) {
        PyErr_SetString(PyExc_TypeError, "single_append() takes a type of locks and the numbers of two words");
        return NULL;
    }
    Appending *self = PyObject_GC_New(Appending, appending_type);
    if (self == NULL)
        return NULL;
    self->slow = Py_NewRef(args[0]);
    self->locked_store = Py_NewRef(args[1]);
    self->state = Py_NewRef(args[2]);
    self->lock_type = (PyTypeObject *)Py_NewRef(args[3]);
    self->end_word = end_word;
    self->next_word = next_word;
    self->lock = self->locked = self->rules = NULL;
    PyObject_GC_Track((PyObject *)self);
    PyObject *function = PyCFunction_NewEx(&append_method, (PyObject *)self, NULL);
    Py_DECREF(self);
    (void)module;
    return function;
}
