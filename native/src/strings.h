/* Columns of byte strings. */

#ifndef COMMITLOG_STRINGS_H
#define COMMITLOG_STRINGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* A column that is to be written. It borrows its items: run no Python code while it is in use. */
typedef struct {
    PyObject *items; /* a list or a tuple of `bytes` and None */
    int is_list;
    int form, nulls; /* as in batches.h */
    Py_ssize_t count;
    Py_ssize_t longest;      /* in bytes */
    Py_ssize_t constant;     /* the length of each, if the form is CONSTANT; otherwise 0 */
    Py_ssize_t length_bytes; /* what all lengths take */
    Py_ssize_t bitmap_bytes; /* what the bitmap of nulls takes */
    Py_ssize_t blob_bytes;   /* what the strings take */
} Strings;

/* Find out how to write a column; returns 0 if it is no list or tuple of `bytes` and None, or has more records or bytes
 * than `most_records` and `most_bytes`. */
int measure_strings(PyObject *items, Py_ssize_t most_records, Py_ssize_t most_bytes, Strings *found);

/* Write the parts of a column, each to where it belongs. */
void write_strings(const Strings *strings, char *lengths, char *bitmap, char *blob);

PyObject *pack_strings(PyObject *module, PyObject *items);

#endif
