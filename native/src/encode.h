/* Whole batches of plain records. */

#ifndef COMMITLOG_ENCODE_H
#define COMMITLOG_ENCODE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *encode_plain(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
