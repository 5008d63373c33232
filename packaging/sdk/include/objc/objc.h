// The basic types of the Objective-C runtime, for compilers that know id, Class
// and SEL by themselves: a second typedef of SEL makes recent clang write two
// nested debug records of that name, and cgo then reports a type loop.
// https://developer.apple.com/documentation/objectivec/objective-c_runtime
#pragma once
#include <sys/types.h>
#include <Availability.h>
#include <objc/objc-api.h>
#include <stdbool.h>
#ifndef __OBJC__
typedef struct objc_class *Class;
struct objc_object { Class isa; };
typedef struct objc_object *id;
typedef struct objc_selector *SEL;
#else
struct objc_object { Class isa; };
#endif
typedef void (*IMP)(void);
#if defined(__arm64__) || defined(__aarch64__)
#define OBJC_BOOL_IS_BOOL 1
#define OBJC_BOOL_IS_CHAR 0
typedef bool BOOL;
#else
#define OBJC_BOOL_IS_BOOL 0
#define OBJC_BOOL_IS_CHAR 1
typedef signed char BOOL;
#endif
#ifdef __OBJC__
#define YES __objc_yes
#define NO __objc_no
#else
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#endif
#ifndef nil
#define nil ((void *)0)
#endif
#ifndef Nil
#define Nil ((void *)0)
#endif
typedef struct _malloc_zone_t *objc_zone_t;
typedef const void *objc_objectptr_t;
OBJC_EXPORT const char *sel_getName(SEL sel);
OBJC_EXPORT SEL sel_registerName(const char *str);
OBJC_EXPORT const char *object_getClassName(id obj);
OBJC_EXPORT void *object_getIndexedIvars(id obj);
OBJC_EXPORT BOOL sel_isMapped(SEL sel);
OBJC_EXPORT SEL sel_getUid(const char *str);
