// What Apple's runtime declares and GCC's does not; double.m defines it.
#pragma once
#include_next <objc/runtime.h>
#include <stdint.h>
#include <stddef.h>
typedef struct { const char *name, *value; } objc_property_attribute_t;
#ifdef __OBJC__
typedef unsigned char Byte;
void objc_setAssociatedObject(id object, const void *key, id value, uintptr_t policy);
id objc_getAssociatedObject(id object, const void *key);
void objc_removeAssociatedObjects(id object);
IMP imp_implementationWithBlock(id block);
id imp_getBlock(IMP imp);
BOOL imp_removeBlock(IMP imp);
char *property_copyAttributeValue(objc_property_t property, const char *name);
objc_property_attribute_t *property_copyAttributeList(objc_property_t property, unsigned *count);
BOOL class_addProperty(Class class, const char *name, const objc_property_attribute_t *list, unsigned count);
void class_replaceProperty(Class class, const char *name, const objc_property_attribute_t *list, unsigned count);
Protocol *objc_allocateProtocol(const char *name);
IMP class_getMethodImplementation_stret(Class class, SEL selector);
#endif
