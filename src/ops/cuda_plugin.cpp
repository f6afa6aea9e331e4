#include "ops/cuda_plugin.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>

namespace primus::ops {
namespace {

constexpr const char* kLibrary = "libprimus_cuda.so";

const CudaPlugin*& loaded() {
  static const CudaPlugin* plugin = nullptr;
  return plugin;
}

[[noreturn]] void refuse(const std::string& reason) {
  throw UserError("no GPU can be used: " + reason);
}

/// The library stands beside the program, or beside the shared library that these ops are part of (torch_ops).
std::filesystem::path library_path() {
  std::error_code error;
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&load_cuda_plugin), &own) != 0 && own.dli_fname != nullptr) {
    const std::filesystem::path object(own.dli_fname);
    if (object.extension() == ".so") return object.parent_path() / kLibrary;
  }
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (error ? std::filesystem::path(".") : program.parent_path()) / kLibrary;
}

const CudaPlugin* open_plugin() {
  const std::filesystem::path path = library_path();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    refuse(fmt::format("this build has no CUDA half ({} is missing; it is built where nvcc is found)", path.string()));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    refuse(fmt::format("{} (the CUDA half needs all of torch's libraries: `make setup KIND=full`)",
                       reason != nullptr ? reason : path.string()));
  }
  const auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, kCudaPluginEntry));
  const CudaPlugin* plugin = entry != nullptr ? entry() : nullptr;
  if (plugin == nullptr || std::string_view(plugin->build) != kCudaPluginBuild || plugin->bytes != sizeof(CudaPlugin)) {
    refuse(fmt::format("{} is of another build ({}, this program: {}); build both again", path.string(),
                       plugin != nullptr ? plugin->build : "no entry point", kCudaPluginBuild));
  }
  if (const std::string problem = plugin->device_problem(); !problem.empty()) refuse(problem);
  return plugin;
}

}  // namespace

const CudaOps& cuda_ops() {
  static const CudaOps empty;
  return loaded() != nullptr ? loaded()->ops : empty;
}

const CudaPlugin& cuda_plugin() {
  PRIMUS_CHECK(loaded() != nullptr, "the GPU half is not loaded");
  return *loaded();
}

void load_cuda_plugin() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (loaded() == nullptr) loaded() = open_plugin();
}

}  // namespace primus::ops
