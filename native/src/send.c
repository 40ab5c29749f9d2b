/* Adding one record to the open batch of a producer: what Producer.send() in commitlog/clients/producer.py does for most
 * records, with the same rules, which ProducerBatch states. Everything else is left to that method: another type, a
 * record that is large, has headers or a partition of its own, a topic without an open batch. */

#include "send.h"

#include <time.h>

#include "objects.h"

#define NAMES(name)                                                                                                     \
    name(records) name(tickets) name(keyed_bytes) name(unkeyed_bytes) name(limit) name(has_given_times)                 \
    name(_delivery) name(_ticket) name(value) name(key) name(timestamp) name(time) name(now)

static struct {
#define DECLARED(name) PyObject *name;
    NAMES(DECLARED)
} names;

static PyTypeObject *sending_type;
static Clock clock_seconds; /* time.time */

/* What one producer's send() needs; it is the `self` of that function. */
typedef struct {
    PyObject_HEAD
    PyObject *slow;    /* Producer.send */
    PyObject *filling; /* {topic: open ProducerBatch} */
    PyObject *settle;  /* Producer._settle */
    PyObject *globals; /* of the module of Producer, whose clock is `now` */
    PyTypeObject *future_type;
    PyObject *batch; /* the one that the last record joined, unless that filled it; and what never changes of it: */
    PyObject *tickets;
    int64_t keyed_bytes, unkeyed_bytes;
} Sending;

static void forget_batch(Sending *self)
{
    Py_CLEAR(self->batch);
    Py_CLEAR(self->tickets);
}

/* Learn what never changes of a batch. */
static int learn_batch(Sending *self, PyObject *batch)
{
    int64_t keyed_bytes, unkeyed_bytes;
    PyObject *tickets = PyObject_GetAttr(batch, names.tickets);
    if (tickets == NULL || !get_int64(batch, names.keyed_bytes, &keyed_bytes) ||
        !get_int64(batch, names.unkeyed_bytes, &unkeyed_bytes)) {
        Py_XDECREF(tickets);
        return 0;
    }
    PyObject *old_batch = self->batch, *old_tickets = self->tickets;
    self->batch = Py_NewRef(batch);
    self->tickets = tickets;
    self->keyed_bytes = keyed_bytes;
    self->unkeyed_bytes = unkeyed_bytes;
    Py_XDECREF(old_tickets);
    Py_XDECREF(old_batch);
    return 1;
}

/* Return the moment of a record: the timestamp that was given, or the seconds of the clock, as time.time() has them. */
static PyObject *moment_of(PyObject *timestamp)
{
    if (timestamp != NULL)
        return Py_NewRef(timestamp);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return PyFloat_FromDouble((double)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec) / 1e9);
}

/* Add a whole record to a list, or nothing; returns 0 after an error. No Python code runs here, so no other thread
 * sees a part of it. */
static int add_record(PyObject *records, PyObject *const fields[4])
{
    Py_ssize_t before = PyList_Size(records);
    for (int field = 0; field < 4; field++)
        if (PyList_Append(records, fields[field]) < 0) {
            PyObject *type, *error, *traceback;
            PyErr_Fetch(&type, &error, &traceback);
            PyList_SetSlice(records, before, before + field, NULL);
            PyErr_Restore(type, error, traceback);
            return 0;
        }
    return 1;
}

static PyObject *new_future(Sending *self, PyObject *batch, PyObject *ticket)
{
    PyObject *future = PyType_GenericAlloc(self->future_type, 0);
    if (future != NULL && (PyObject_SetAttr(future, names._delivery, batch) < 0 ||
                           PyObject_SetAttr(future, names._ticket, ticket) < 0))
        Py_CLEAR(future);
    return future;
}

typedef struct {
    PyObject *topic, *value, *key, *timestamp; /* borrowed; NULL is what was not given */
} Sent;

/* Add the record to the open batch of its topic. Returns 1 and its future if it did, 0 if that is for the slow path,
 * -1 after an error. */
static int try_send(Sending *self, const Sent *sent, PyObject **future)
{
    PyObject *batch = PyDict_GetItemWithError(self->filling, sent->topic);
    if (batch == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(batch);
    PyObject *records = NULL, *ticket = NULL, *moment = NULL;
    int64_t limit;
    int done = -1, overflow;
    if (batch != self->batch && !learn_batch(self, batch))
        goto finished;
    done = 0;
    if (batch != self->batch) /* another thread came in while the old one was let go of */
        goto finished;
    Py_ssize_t size = PyBytes_Size(sent->value);
    if (sent->key == NULL ? size > self->unkeyed_bytes : size + PyBytes_Size(sent->key) > self->keyed_bytes)
        goto finished;
    if (sent->timestamp != NULL && (!PyLong_CheckExact(sent->timestamp) ||
                                    PyLong_AsLongLongAndOverflow(sent->timestamp, &overflow) < 0))
        goto finished;
    if (sent->timestamp == NULL && (done = is_real_clock(&clock_seconds, self->globals, names.now)) <= 0)
        goto finished;
    done = -1;
    if (sent->timestamp != NULL && PyObject_SetAttr(batch, names.has_given_times, Py_True) < 0)
        goto finished;
    if ((records = PyObject_GetAttr(batch, names.records)) == NULL || (ticket = PyIter_Next(self->tickets)) == NULL ||
        (moment = moment_of(sent->timestamp)) == NULL)
        goto finished;
    PyObject *const fields[4] = {sent->value, sent->key == NULL ? Py_None : sent->key, moment, ticket};
    if (!add_record(records, fields) || !get_int64(batch, names.limit, &limit))
        goto finished;
    if (PyLong_AsLongLong(ticket) >= limit) {
        forget_batch(self);
        PyObject *settled = PyObject_CallFunctionObjArgs(self->settle, batch, ticket, NULL);
        done = settled == NULL ? -1 : PyObject_IsTrue(settled);
        Py_XDECREF(settled);
        if (done <= 0) /* 0: it came too late for this batch, and is sent again */
            goto finished;
    }
    *future = new_future(self, batch, ticket);
    done = *future == NULL ? -1 : 1;
finished:
    Py_XDECREF(moment);
    Py_XDECREF(ticket);
    Py_XDECREF(records);
    Py_DECREF(batch);
    return done;
}

/* Read send(topic, value, key, timestamp=timestamp), whose other arguments are None, however they are given; returns 0
 * if it is for the slow path. */
static int read_arguments(PyObject *const *args, Py_ssize_t count, PyObject *keywords, Sent *sent)
{
    PyObject *given[7] = {NULL}; /* topic, value, key, headers, partition, timestamp, on_delivery */
    if (count > 7)
        return 0;
    for (Py_ssize_t number = 0; number < count; number++)
        given[number] = args[number];
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t number = 0; number < named; number++) {
        PyObject *name = PyTuple_GetItem(keywords, number);
        int place = name == names.value ? 1 : name == names.key ? 2 : name == names.timestamp ? 5 : -1;
        if (place < 0 || given[place] != NULL)
            return 0;
        given[place] = args[count + number];
    }
    for (int number = 2; number < 7; number++)
        if (given[number] == Py_None)
            given[number] = NULL;
    *sent = (Sent){given[0], given[1], given[2], given[5]};
    return sent->topic != NULL && PyUnicode_CheckExact(sent->topic) && sent->value != NULL &&
           PyBytes_CheckExact(sent->value) && (sent->key == NULL || PyBytes_CheckExact(sent->key)) &&
           given[3] == NULL && given[4] == NULL && given[6] == NULL;
}

static PyObject *send(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Sent sent;
    PyObject *future = NULL;
    if (((Sending *)self)->filling == NULL)
        return was_cleared("the producer");
    if (read_arguments(args, count, keywords, &sent)) {
        int done = try_send((Sending *)self, &sent, &future);
        if (done)
            return done > 0 ? future : NULL;
    }
    return call_with(((Sending *)self)->slow, args, count, keywords);
}

static PyMethodDef send_method = {
    "send",
    FAST(send),
    METH_FASTCALL | METH_KEYWORDS,
    "send($self, topic, value=None, key=None, headers=None, partition=None, timestamp=None, on_delivery=None)\n--\n\n"
    "Send a record; returns a future of its partition and offset.",
};

/* --- the object behind it */

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Sending *self = (Sending *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->slow);
    Py_VISIT(self->filling);
    Py_VISIT(self->settle);
    Py_VISIT(self->globals);
    Py_VISIT(self->future_type);
    Py_VISIT(self->batch);
    Py_VISIT(self->tickets);
    return 0;
}

static int clear(PyObject *object)
{
    Sending *self = (Sending *)object;
    Py_CLEAR(self->filling); /* first: send() looks at it */
    Py_CLEAR(self->slow);
    Py_CLEAR(self->settle);
    Py_CLEAR(self->globals);
    Py_CLEAR(self->future_type);
    forget_batch(self);
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
    {Py_tp_doc, "What a producer's send() needs."},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "commitlog_speedups.Sending",
    .basicsize = sizeof(Sending),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

int send_prepare(PyObject *module)
{
#define INTERNED(name)                                                                                                  \
    if (names.name == NULL && (names.name = PyUnicode_InternFromString(#name)) == NULL)                                 \
        return 0;
    NAMES(INTERNED)
    if (!learn_clock(&clock_seconds, names.time))
        return 0;
    if (sending_type == NULL)
        sending_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return sending_type != NULL;
}

/* fast_send(send, filling, settle, RecordFuture, globals): a function that does what `send` does */
PyObject *fast_send(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!check_count("fast_send", count, 5))
        return NULL;
    if (!PyDict_CheckExact(args[1]) || !PyType_Check(args[3]) || !PyDict_CheckExact(args[4])) {
        PyErr_SetString(PyExc_TypeError, "fast_send() takes a dict of batches, a type of futures and a module's globals");
        return NULL;
    }
    Sending *self = PyObject_GC_New(Sending, sending_type);
    if (self == NULL)
        return NULL;
    self->slow = Py_NewRef(args[0]);
    self->filling = Py_NewRef(args[1]);
    self->settle = Py_NewRef(args[2]);
    self->future_type = (PyTypeObject *)Py_NewRef(args[3]);
    self->globals = Py_NewRef(args[4]);
    self->batch = self->tickets = NULL;
    PyObject_GC_Track((PyObject *)self);
    PyObject *function = PyCFunction_NewEx(&send_method, (PyObject *)self, NULL);
    Py_DECREF(self);
    return function;
}
