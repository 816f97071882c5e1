// Our own stand-ins for the messages of the host code and for dumps.
#include <vector>
#include <string>
#include <cstdio>
#include <cstdarg>
extern void ReportErrorMessageInner(const std::string& code, const char* fmt, ...);

namespace error_message {
void ReportInnerErrMsg(const char*, const char* code, unsigned, const char*, const char* fmt, ...) { char b[1024]; va_list a; va_start(a, fmt); vsnprintf(b, sizeof b, fmt, a); va_end(a); ReportErrorMessageInner(code, "%s", b); }
int ReportPredefinedErrMsg(const char* code, const std::vector<const char*>& k, const std::vector<const char*>& v) { std::string s; for (size_t i = 0; i < v.size(); ++i) { s += std::string(i < k.size() ? k[i] : "") + "=" + v[i] + "; "; } ReportErrorMessageInner(code, "%s", s.c_str()); return 0; }
int RegisterFormatErrorMessage(const char*, unsigned long) { return 0; }
}
namespace op { namespace internal { void aclnnAicpuFinalize() {} } }
namespace Adx { enum class DumpType : int; enum class SaveType : int;
unsigned long AdumpGetDumpSwitch(DumpType) { return 0; }
int AdumpRegisterCallback(unsigned, int (*)(unsigned long, const char*, int), int (*)(unsigned long, const char*, int)) { return 0; } }
extern "C" int CheckLogLevel(int, int l) { return 0; }
extern "C" void DlogRecord(int, int, const char*, ...) {}
