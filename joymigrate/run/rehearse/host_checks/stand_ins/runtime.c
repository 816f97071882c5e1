/* Our own stand-ins for the few runtime functions that the host code calls. */
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
#define Z(n) int n(void){ return 0; }
int aclrtGetDevice(int* d){ *d = 0; return 0; }
const char* aclrtGetSocName(void){ const char* s = getenv("SOC_LONG"); return s ? s : "Ascend910B3"; }
int rtGetSocSpec(const char* a,const char* b,char* o,unsigned n){ strncpy(o,"2201",n); return 0; }
Z(aclmdlRICaptureGetInfo) Z(aclrtBinaryGetFunction) Z(aclrtBinaryGetFunctionByEntry) Z(aclrtBinaryLoadFromData) Z(aclrtCacheLastTaskOpInfo) Z(aclrtCtxGetFloatOverflowAddr)
int aclrtCtxGetSysParamOpt(int o,long* v){ *v=0; return 0; } int aclrtGetSysParamOpt(int o,long* v){ *v=0; return 0; }
Z(aclrtFree) Z(aclrtGetDeviceSatMode) Z(aclrtGetHardwareSyncAddr)
int aclrtGetResInCurrentThread(int t, unsigned* v){ *v = 24; return 0; }
Z(aclrtGetStreamAttribute) Z(aclrtGetThreadLastTaskId) Z(aclrtLaunchKernelWithHostArgs) Z(aclrtMallocWithCfg) Z(aclrtMemcpyAsync) Z(aclrtNpuClearFloatOverFlowStatus) Z(aclrtNpuGetFloatOverFlowStatus) Z(aclrtRandomNumAsync) Z(aclrtRecordEvent) Z(aclrtStreamGetId) Z(aclrtStreamWaitEvent) Z(aclrtSynchronizeStream)
int aclrtMemcpy(void* d, size_t n, const void* s, size_t c, int k){ memcpy(d,s,c); return 0; }
Z(AdumpAddExceptionOperatorInfoV2) Z(AdumpGetDFXInfoAddrForDynamic) Z(AdumpGetSizeInfoAddr) Z(MsprofGetHashId) Z(MsprofRegTypeInfo) Z(MsprofRegisterCallback) Z(MsprofReportAdditionalInfo) Z(MsprofReportApi) Z(MsprofReportCompactInfo) Z(MsprofSysCycleTime)
Z(mmAccess2) Z(mmDladdr) Z(mmGetTid) Z(mmIsDir) Z(mmMkdir) Z(mmRealPath) Z(rtSetExceptionExtInfo)
Z(NnopbaseReloadStaticBinJsonInfos) 
Z(mmAccess) Z(mmClose) Z(mmDlclose) Z(mmGetErrorCode) Z(mmGetPid) Z(mmRmdir) Z(mmScandir) Z(mmWrite)
void* mmDlopen(const char* a,int b){ return 0; } void* mmDlsym(void* a,const char* b){ return 0; } const char* mmDlerror(void){ return "none"; } int mmOpen2(void){ return -1; } char* mmSysGetEnv(int i){ return 0; } char* mmGetErrorFormatMessage(int e,char* b,int n){ return b; }
Z(NnopbaseDisableOptionalInput) Z(aclrtSetSysParamOpt)
int rtCtxGetSysParamOpt(int o,long* v){ *v=0; return 0; }
