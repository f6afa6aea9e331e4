#pragma once
// Asked to stop by a signal: the step in progress is finished first; a second signal ends the process at once.
namespace primus::train {

/// Catch SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 from now on.
void catch_interrupts();

/// The signal that asked the run to stop; 0: none.
int pending_interrupt();

/// Forget it (tests).
void clear_interrupt();

}  // namespace primus::train
