// Our own stand-in for the platform: the chip model is chosen, not asked for.
#include "opdev/platform.h"
#include <map>
#include <cstdlib>
#include <cstring>
namespace op {
static SocVersion model_of(const char* s) {
  if (!strcmp(s,"910")) return SocVersion::ASCEND910; if (!strcmp(s,"910B")) return SocVersion::ASCEND910B;
  if (!strcmp(s,"910_93")) return SocVersion::ASCEND910_93; if (!strcmp(s,"310P")) return SocVersion::ASCEND310P;
  if (!strcmp(s,"310B")) return SocVersion::ASCEND310B; if (!strcmp(s,"950")) return SocVersion::ASCEND950; if (!strcmp(s,"310")) return SocVersion::ASCEND310; return SocVersion::ASCEND910B; }
static NpuArch ArchOf(SocVersion v) { static const std::map<SocVersion, NpuArch> m = {
  {SocVersion::ASCEND910, NpuArch::DAV_1001}, {SocVersion::ASCEND910B, NpuArch::DAV_2201}, {SocVersion::ASCEND910_93, NpuArch::DAV_2201},
  {SocVersion::ASCEND950, NpuArch::DAV_3510}, {SocVersion::ASCEND310, NpuArch::DAV_2002}, {SocVersion::ASCEND310P, NpuArch::DAV_2002},
  {SocVersion::ASCEND310B, NpuArch::DAV_3002}, {SocVersion::ASCEND610LITE, NpuArch::DAV_3102}};
  auto i = m.find(v); return i == m.end() ? NpuArch::DAV_2201 : i->second; }
static SocVersion SocOf(NpuArch a) { switch (a) { case NpuArch::DAV_1001: return SocVersion::ASCEND910; case NpuArch::DAV_2201: return SocVersion::ASCEND910B;
  case NpuArch::DAV_3510: return SocVersion::ASCEND950; case NpuArch::DAV_2002: return SocVersion::ASCEND310P; case NpuArch::DAV_3002: return SocVersion::ASCEND310B;
  case NpuArch::DAV_3102: return SocVersion::ASCEND610LITE; default: return SocVersion::ASCEND910B; } }
SocVersion g_soc = SocVersion::ASCEND910B; NpuArch g_arch = ArchOf(g_soc); static uint32_t g_cores = 24;
static const std::map<SocVersion, const char*> kName = {{SocVersion::ASCEND910,"Ascend910"},{SocVersion::ASCEND910B,"Ascend910B"},{SocVersion::ASCEND910_93,"Ascend910_93"},
 {SocVersion::ASCEND950,"Ascend950"},{SocVersion::ASCEND310,"Ascend310"},{SocVersion::ASCEND310P,"Ascend310P"},{SocVersion::ASCEND310B,"Ascend310B"},{SocVersion::ASCEND310C,"Ascend310C"},{SocVersion::ASCEND610LITE,"Ascend610Lite"}};
bool PlatformInfo::CheckSupport(SocSpec, SocSpecAbility) const { return true; }
PlatformInfo::~PlatformInfo() {}
bool PlatformInfo::Valid() const { return true; }
void PlatformInfo::SetPlatformImpl(PlatformInfoImpl*) {}
SocVersion PlatformInfo::GetSocVersion() const { return g_soc; }
NpuArch PlatformInfo::GetCurNpuArch() const { return g_arch; }
const std::string& PlatformInfo::GetSocLongVersion() const { static std::string s[16]; static int k = 0; std::string& r = s[k++ % 16]; auto i = kName.find(g_soc); r = i == kName.end() ? "unknownVersion" : i->second; return r; }
int32_t PlatformInfo::GetDeviceId() const { return 0; }
int64_t PlatformInfo::GetBlockSize() const { return 32; }
uint32_t PlatformInfo::GetCubeCoreNum() const { return g_cores; }
uint32_t PlatformInfo::GetVectorCoreNum() const { return g_cores * 2; }
bool PlatformInfo::GetFftsPlusMode() const { return true; }
fe::PlatFormInfos* PlatformInfo::GetPlatformInfos() const { return nullptr; }
const PlatformInfo& GetCurrentPlatformInfo() { static PlatformInfo* p = new PlatformInfo(0); return *p; }
ge::AscendString ToString(SocVersion v) { auto i = kName.find(v); return ge::AscendString(i == kName.end() ? "UnknownSocVersion" : i->second); }
void SetPlatformSocVersion(SocVersion v) { g_soc = v; g_arch = ArchOf(v); }
void SetPlatformNpuArch(NpuArch a) { g_arch = a; g_soc = SocOf(a); }
void SetCubeCoreNum(uint32_t n) { g_cores = n; }
SocVersionManager::SocVersionManager(SocVersion v) : o_(g_soc), a_(g_arch) { SetPlatformSocVersion(v); }
SocVersionManager::~SocVersionManager() { g_soc = o_; g_arch = a_; }
NpuArchManager::NpuArchManager(NpuArch a) : o_(g_soc), a_(g_arch) { SetPlatformNpuArch(a); }
NpuArchManager::~NpuArchManager() { g_soc = o_; g_arch = a_; }
}
extern "C" __attribute__((visibility("default"))) void joy_host_model(const char* name) { op::SetPlatformSocVersion(op::model_of(name)); }
