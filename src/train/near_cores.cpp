#include "train/near_cores.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.hpp"
#include "base/files.hpp"
#include "ops/device_profile.hpp"

namespace primus::train {
namespace {

[[noreturn]] void refuse(std::string_view list) {
  throw UserError(fmt::format("{} is no list of cores (expected for instance 0-15,32-47)", list));
}

int number_of(std::string_view text, std::string_view list) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || number < 0 || number >= CPU_SETSIZE) refuse(list);
  return number;
}

void bind_threads(const cpu_set_t& cores) {
  // Threads inherit it from the one that makes them; those that are there already are told one by one.
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    const int id = std::atoi(thread.path().filename().c_str());
    ::sched_setaffinity(id, sizeof cores, &cores);
  }
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<int> cores_of(std::string_view list) {
  std::vector<int> cores;
  std::string_view rest = trimmed(list);
  while (!rest.empty()) {
    const std::string_view range = rest.substr(0, rest.find(','));
    const std::size_t dash = range.find('-');
    const int first = number_of(range.substr(0, dash), list);
    const int last = dash == std::string_view::npos ? first : number_of(range.substr(dash + 1), list);
    if (last < first) refuse(list);
    for (int core = first; core <= last; ++core) cores.push_back(core);
    rest.remove_prefix(std::min(rest.size(), range.size() + 1));
  }
  return cores;
}

std::string bind_near(const std::string& pci_address, const std::filesystem::path& devices) {
  const std::filesystem::path file = devices / pci_address / "local_cpulist";
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    return fmt::format("not bound: this machine does not say which cores are near the GPU ({} is missing)",
                       file.string());
  }
  const std::string list = read_file(file);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return "not bound: the system refuses to tell its cores";
  cpu_set_t near;
  CPU_ZERO(&near);
  for (const int core : cores_of(list)) {
    if (CPU_ISSET(core, &allowed)) CPU_SET(core, &near);
  }
  const int count = CPU_COUNT(&near);
  if (count == 0) return fmt::format("not bound: no core near the GPU ({}) may be used by this process", trimmed(list));
  bind_threads(near);
  at::set_num_threads(std::min(at::get_num_threads(), count));
  return fmt::format("bound to the {} cores near the GPU at {}", count, pci_address);
}

std::string bind_if_asked(at::Device device) {
  const char* asked = std::getenv("ENABLE_NUMA_BINDING");
  if (asked == nullptr || std::string_view(asked) != "1") return "";
  if (!device.is_cuda()) return "ENABLE_NUMA_BINDING: a run on the CPU has all cores";
  return "ENABLE_NUMA_BINDING: " + bind_near(ops::pci_address(device));
}

}  // namespace primus::train
