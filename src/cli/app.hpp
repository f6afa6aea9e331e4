#pragma once
// CLI11, for the files that declare options; it is large, so that no other header includes it.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
