/* producer.send() for small plain records. */

#ifndef COMMITLOG_SEND_H
#define COMMITLOG_SEND_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Prepare the module for fast_send(); returns 0 after an error. */
int send_prepare(PyObject *module);

PyObject *fast_send(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
