/* Writing a column of byte strings: their lengths, at the smallest width, and all their bytes in one string. */

#include "strings.h"

#include <stdint.h>
#include <string.h>

enum { CONSTANT, U8, U16, U32 }; /* the forms of an integer column */

static PyObject *item_at(PyObject *items, int is_list, Py_ssize_t number)
{
    return is_list ? PyList_GetItem(items, number) : PyTuple_GetItem(items, number);
}

static void store_length(char *lengths, int form, Py_ssize_t number, Py_ssize_t length)
{
    uint32_t wide = (uint32_t)length;
    if (form == U8)
        lengths[number] = (char)wide;
    else if (form == U16)
        memcpy(lengths + 2 * number, &wide, 2);
    else if (form == U32)
        memcpy(lengths + 4 * number, &wide, 4);
}

/* pack_strings(items): the form, the constant and the bytes of their lengths, and all bytes together; None if they are
 * no list or tuple, or not all `bytes`. No Python code runs here, so nothing changes them meanwhile. */
PyObject *pack_strings(PyObject *Py_UNUSED(module), PyObject *items)
{
    int is_list = PyList_CheckExact(items);
    if (!is_list && !PyTuple_CheckExact(items))
        Py_RETURN_NONE;
    Py_ssize_t count = is_list ? PyList_Size(items) : PyTuple_Size(items);
    Py_ssize_t least = PY_SSIZE_T_MAX, most = 0, total = 0;
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *item = item_at(items, is_list, number);
        if (!PyBytes_CheckExact(item))
            Py_RETURN_NONE;
        Py_ssize_t length = PyBytes_Size(item);
        least = length < least ? length : least;
        most = length > most ? length : most;
        if (length > PY_SSIZE_T_MAX - total || length > UINT32_MAX)
            Py_RETURN_NONE;
        total += length;
    }
    if (count == 0)
        Py_RETURN_NONE;
    int form = least == most ? CONSTANT : most <= UINT8_MAX ? U8 : most <= UINT16_MAX ? U16 : U32;
    Py_ssize_t width = form == U32 ? 4 : form; /* in bytes */
    if (width && count > PY_SSIZE_T_MAX / width)
        Py_RETURN_NONE;
    PyObject *lengths = PyBytes_FromStringAndSize(NULL, count * width);
    PyObject *blob = lengths == NULL ? NULL : PyBytes_FromStringAndSize(NULL, total);
    if (blob == NULL) {
        Py_XDECREF(lengths);
        return NULL;
    }
    char *to = PyBytes_AsString(blob), *each = PyBytes_AsString(lengths);
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *item = item_at(items, is_list, number);
        Py_ssize_t length = PyBytes_Size(item);
        store_length(each, form, number, length);
        memcpy(to, PyBytes_AsString(item), (size_t)length);
        to += length;
    }
    return Py_BuildValue("inNN", form, form == CONSTANT ? most : 0, lengths, blob);
}
