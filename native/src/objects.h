/* What several functions do with Python objects. */

#ifndef COMMITLOG_OBJECTS_H
#define COMMITLOG_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* A function that takes its arguments without a tuple and a dict. */
#define FAST(function) (PyCFunction)(void (*)(void))(function)

/* Raise ReferenceError: a finalizer called something that the garbage collector has cleared. */
PyObject *was_cleared(const char *what);

/* Raise TypeError unless a function got as many arguments as it takes; returns 0 then. */
int check_count(const char *name, Py_ssize_t count, Py_ssize_t wanted);

/* Return an int as int64_t; one that does not fit becomes the nearest that does. -1 and an error if it is no int. */
int64_t clamped(PyObject *number);

/* Get an attribute as clamped() has it; returns 0 after an error. */
int get_int64(PyObject *owner, PyObject *name, int64_t *found);

/* A function of the module `time`, as it was when this module was loaded. */
typedef struct {
    PyObject *globals; /* of `time` */
    PyCFunction function;
} Clock;

int learn_clock(Clock *clock, PyObject *name);

/* Say whether what `globals` have by this name is that clock, and not one that a test put in its place, or behind its
 * name; -1 after an error. */
int is_real_clock(const Clock *clock, PyObject *globals, PyObject *name);

/* Let other threads run during work on this many bytes, if they are many: go_on() ends that. */
static inline PyThreadState *let_others_run(Py_ssize_t size)
{
    return size >= 32 * 1024 ? PyEval_SaveThread() : NULL;
}

static inline void go_on(PyThreadState *thread)
{
    if (thread != NULL)
        PyEval_RestoreThread(thread);
}

/* Call a function with arguments as METH_FASTCALL | METH_KEYWORDS has them. */
PyObject *call_with(PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords);

#endif
