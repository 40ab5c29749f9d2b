/* Dividing records by their keys. */

#ifndef COMMITLOG_KEYS_H
#define COMMITLOG_KEYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *divide_by_key(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
