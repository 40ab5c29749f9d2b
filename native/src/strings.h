/* Columns of byte strings. */

#ifndef COMMITLOG_STRINGS_H
#define COMMITLOG_STRINGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *pack_strings(PyObject *module, PyObject *items);

#endif
