#pragma once
// What the files that a run leaves for other programs have in common.
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>

namespace primus::train {

inline constexpr const char* kTimeFormat = "%Y-%m-%d %H:%M:%S";  // of time_text, for strptime

/// "2026-11-30 16:07:53", local time.
std::string time_text(std::time_t time);

/// Puts the text behind what the file holds; the file is made if it is not there. Throws UserError with path and
/// reason.
void append_to_file(const std::filesystem::path& path, std::string_view text);

}  // namespace primus::train
