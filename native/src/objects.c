#include "objects.h"

#include <dlfcn.h>

PyObject *was_cleared(const char *what)
{
    PyErr_Format(PyExc_ReferenceError, "%s was removed by the garbage collector", what);
    return NULL;
}

/* Say whether a function is Python's own, and not one of another library. */
static int is_pythons(PyCFunction function)
{
    Dl_info found, python;
    return dladdr((void *)function, &found) && dladdr((void *)PyFloat_FromDouble, &python) &&
           found.dli_fbase == python.dli_fbase;
}

int check_count(const char *name, Py_ssize_t count, Py_ssize_t wanted)
{
    if (count == wanted)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", name, wanted, count);
    return 0;
}

int64_t clamped(PyObject *number)
{
    int overflow;
    int64_t found = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow ? (overflow > 0 ? INT64_MAX : INT64_MIN) : found;
}

int get_int64(PyObject *owner, PyObject *name, int64_t *found)
{
    PyObject *number = PyObject_GetAttr(owner, name);
    if (number == NULL)
        return 0;
    *found = clamped(number);
    Py_DECREF(number);
    return *found != -1 || !PyErr_Occurred();
}

int learn_clock(Clock *clock, PyObject *name)
{
    if (clock->globals == NULL) {
        PyObject *time = PyImport_ImportModule("time");
        clock->globals = time == NULL ? NULL : Py_XNewRef(PyModule_GetDict(time));
        Py_XDECREF(time);
    }
    PyObject *function = clock->globals == NULL ? NULL : PyDict_GetItemWithError(clock->globals, name);
    clock->function = function != NULL && PyCFunction_CheckExact(function) ? PyCFunction_GetFunction(function) : NULL;
    if (clock->function != NULL && !is_pythons(clock->function))
        clock->function = NULL; /* a test has put another one behind the name already */
    return !PyErr_Occurred();
}

int is_real_clock(const Clock *clock, PyObject *globals, PyObject *name)
{
    PyObject *found = PyDict_GetItemWithError(globals, name);
    if (found == NULL)
        return PyErr_Occurred() ? -1 : 0;
    return clock->function != NULL && PyCFunction_CheckExact(found) &&
           PyCFunction_GetFunction(found) == clock->function;
}

PyObject *call_with(PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *given = PyTuple_New(count), *named = NULL, *result = NULL;
    if (given == NULL)
        return NULL;
    for (Py_ssize_t number = 0; number < count; number++)
        PyTuple_SetItem(given, number, Py_NewRef(args[number]));
    if (keywords != NULL && (named = PyDict_New()) == NULL)
        goto finished;
    for (Py_ssize_t number = 0; named != NULL && number < PyTuple_Size(keywords); number++)
        if (PyDict_SetItem(named, PyTuple_GetItem(keywords, number), args[count + number]) < 0)
            goto finished;
    result = PyObject_Call(function, given, named);
finished:
    Py_XDECREF(named);
    Py_DECREF(given);
    return result;
}
