// The C++ name of the log function; the C one is in messages.cpp.
void DlogRecord(int, int, const char*, ...) {}
