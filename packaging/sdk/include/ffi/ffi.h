// The C interface of libffi as darwinkit uses it: the public layout of libffi
// 3.4, with room to spare in cif and closure, which libffi alone fills.
// https://developer.apple.com/library/archive/documentation/System/Conceptual/ManPages_iPhoneOS/man3/ffi.3.html
#pragma once
#include <stddef.h>
#include <stdint.h>
#if defined(__aarch64__)
typedef enum { FFI_FIRST_ABI = 0, FFI_SYSV, FFI_WIN64, FFI_LAST_ABI, FFI_DEFAULT_ABI = FFI_SYSV } ffi_abi;
#define FFI_TRAMPOLINE_SIZE 16
#else
typedef enum { FFI_FIRST_ABI = 1, FFI_UNIX64, FFI_WIN64, FFI_EFI64 = FFI_WIN64, FFI_GNUW64, FFI_LAST_ABI, FFI_DEFAULT_ABI = FFI_UNIX64 } ffi_abi;
#define FFI_TRAMPOLINE_SIZE 32
#endif
typedef unsigned long ffi_arg;
typedef long ffi_sarg;
typedef struct _ffi_type { size_t size; unsigned short alignment, type; struct _ffi_type **elements; } ffi_type;
typedef enum { FFI_OK = 0, FFI_BAD_TYPEDEF, FFI_BAD_ABI, FFI_BAD_ARGTYPE } ffi_status;
typedef struct { ffi_abi abi; unsigned nargs; ffi_type **arg_types; ffi_type *rtype; unsigned bytes, flags, spare[5]; } ffi_cif;
typedef struct {
  void *trampoline_table, *trampoline_table_entry;
  ffi_cif *cif;
  void (*fun)(ffi_cif *, void *, void **, void *);
  void *user_data;
  char room[FFI_TRAMPOLINE_SIZE];
} ffi_closure;
#define FFI_TYPE_VOID 0
#define FFI_TYPE_STRUCT 13
extern ffi_type ffi_type_void, ffi_type_uint8, ffi_type_sint8, ffi_type_uint16, ffi_type_sint16, ffi_type_uint32, ffi_type_sint32;
extern ffi_type ffi_type_uint64, ffi_type_sint64, ffi_type_float, ffi_type_double, ffi_type_pointer;
ffi_status ffi_prep_cif(ffi_cif *, ffi_abi, unsigned, ffi_type *, ffi_type **);
void ffi_call(ffi_cif *, void (*)(void), void *, void **);
void *ffi_closure_alloc(size_t, void **);
void ffi_closure_free(void *);
ffi_status ffi_prep_closure_loc(ffi_closure *, ffi_cif *, void (*)(ffi_cif *, void *, void **, void *), void *, void *);
