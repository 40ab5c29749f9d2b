/* partition.append() for small plain records. */

#ifndef COMMITLOG_APPEND_H
#define COMMITLOG_APPEND_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Prepare the module for single_append(); returns 0 after an error. */
int append_prepare(PyObject *module);

PyObject *single_append(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
