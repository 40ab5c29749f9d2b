/* Collecting records. */

#ifndef COMMITLOG_RECORDS_H
#define COMMITLOG_RECORDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *take_records(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
