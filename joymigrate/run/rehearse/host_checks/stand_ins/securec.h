// Our own stand-in for the bounds-checked functions of C11 Annex K.
#pragma once
#include <cstring>
#include <cstdio>
#include <cstdarg>
#include <cstdlib>
typedef int errno_t;
#ifndef EOK
#define EOK 0
#endif
#define SECUREC_MEM_MAX_LEN (0x7fffffffUL)
#define SECUREC_STRING_MAX_LEN (0x7fffffffUL)
inline errno_t memcpy_s(void*d,size_t n,const void*s,size_t c){ if(c>n) return 1; memcpy(d,s,c); return 0;}
inline errno_t memmove_s(void*d,size_t n,const void*s,size_t c){ if(c>n) return 1; memmove(d,s,c); return 0;}
inline errno_t memset_s(void*d,size_t n,int v,size_t c){ if(c>n) return 1; memset(d,v,c); return 0;}
inline errno_t strcpy_s(char*d,size_t n,const char*s){ if(strlen(s)>=n) return 1; strcpy(d,s); return 0;}
inline errno_t strncpy_s(char*d,size_t n,const char*s,size_t c){ size_t l=strnlen(s,c); if(l>=n) return 1; memcpy(d,s,l); d[l]=0; return 0;}
inline errno_t strcat_s(char*d,size_t n,const char*s){ if(strlen(d)+strlen(s)>=n) return 1; strcat(d,s); return 0;}
inline char* strtok_s(char*a,const char*b,char**c){ return strtok_r(a,b,c);}
inline int vsnprintf_s(char*d,size_t n,size_t c,const char*f,va_list a){ return vsnprintf(d,n<c+1?n:c+1,f,a);}
inline int snprintf_s(char*d,size_t n,size_t c,const char*f,...){ va_list a; va_start(a,f); int r=vsnprintf(d,n<c+1?n:c+1,f,a); va_end(a); return r;}
inline int sprintf_s(char*d,size_t n,const char*f,...){ va_list a; va_start(a,f); int r=vsnprintf(d,n,f,a); va_end(a); return r;}
inline int vsprintf_s(char*d,size_t n,const char*f,va_list a){ return vsnprintf(d,n,f,a);}
inline int sscanf_s(const char*s,const char*f,...){ va_list a; va_start(a,f); int r=vsscanf(s,f,a); va_end(a); return r;}
