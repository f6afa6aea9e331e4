// Takes the place of a profiler: a library that NVTX_INJECTION64_PATH names is told of every range. The test that sets
// it asks for the names.
#include <nvtx3/nvToolsExt.h>

#include <string>

namespace {

std::string& names() {
  static std::string list;
  return list;
}

int NVTX_API push(const char* name) {
  names() += std::string("+") + name + "\n";
  return 0;
}

int NVTX_API pop() {
  names() += "-\n";
  return 0;
}

template <typename Function>
void listen(NvtxFunctionTable table, unsigned size, int function, Function* own) {
  if (static_cast<unsigned>(function) < size) *table[function] = reinterpret_cast<NvtxFunctionPointer>(own);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  listen(table, size, NVTX_CBID_CORE_RangePushA, &push);
  listen(table, size, NVTX_CBID_CORE_RangePop, &pop);
  return 1;
}

/// "+name" a push and "-" a pop, a line each, since the library was loaded.
extern "C" __attribute__((visibility("default"))) const char* nvtx_listener_names() {
  return names().c_str();
}
