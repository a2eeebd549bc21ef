//! Runs two guests that exchange TCP data through a backend's switch, as often as is asked.

use pregrant_cli::screen::Progress;
use pregrant_cli::table::figure;
use pregrant_host::drivers::{Mode, Placement, RxContext};
use pregrant_testbed::answer;
use pregrant_testbed::process::process_command::{ProcessCommand, Transfer, WorkerSetup};
use pregrant_testbed::process::report::{Numbered, Report, SwitchFrames, Switched, Transferred};
use pregrant_testbed::testbed::{Process, Testbed};
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub const CLIENT: u16 = 5;
pub const SERVER: u16 = 6;
/// Length of a transfer in bytes.
pub const TRANSFER_BYTES: u64 = 64 << 20;
/// Length of a packet in bytes.
pub const MTU: usize = 1500;
/// The data length of staging, into which a frame of 1514 bytes fits.
pub const DATA_LEN: u32 = 2048;

/// Number of worker threads of the backend, as many as `pregrant back` has on the loopback by
/// default.
pub const WORKERS: usize = 1;

/// A machine with the processes of a driver domain and of two guests.
pub struct Stage {
    pub testbed: Testbed,
    pub back: Process,
    pub client: Process,
    pub server: Process,
    progress: Progress,
}

/// Starts a backend that serves its queues as `pregrant back` does.
pub fn backend(testbed: &Testbed) -> Result<Process> {
    backend_with(testbed, RxContext::default())
}

fn backend_with(testbed: &Testbed, rx_context: RxContext) -> Result<Process> {
    let (place, mode) = (Placement::default(), Mode::Adaptive);
    testbed.back(None, Some(WorkerSetup { workers: WORKERS, place, rx_context, mode, cores: Vec::new() }))
}

impl Stage {
    /// Starts the machine and its processes. There are no vifs yet.
    pub fn start() -> Result<Self> {
        Self::start_with(RxContext::default())
    }

    /// Starts the processes as [`start`](Self::start) does, with a backend that delivers frames in
    /// this context.
    pub fn start_with(rx_context: RxContext) -> Result<Self> {
        let testbed = Testbed::start()?;
        testbed.guest_domain(CLIENT)?;
        testbed.guest_domain(SERVER)?;
        let back = backend_with(&testbed, rx_context)?;
        let client = testbed.process("guest", CLIENT, None)?;
        let server = testbed.process("guest", SERVER, None)?;
        Ok(Self { testbed, back, client, server, progress: Progress::new() })
    }

    /// Makes the vifs and begins a transfer; returns when both are connected. With `report_at`, the
    /// server reports when that many bytes have arrived, and both guests report when frames
    /// arrived. `made` is called before any of them connects.
    pub fn begin(&mut self, report_at: Option<u64>, made: impl FnOnce()) -> Result<()> {
        self.back.command(&ProcessCommand::Switch { vifs: 2, succeed: false })?;
        for front in [CLIENT, SERVER] {
            self.testbed.make_vif(front, 0)?;
        }
        made();
        let part = |own, to| {
            ProcessCommand::Transfer(Transfer {
                own,
                to,
                bytes: TRANSFER_BYTES,
                data_len: Some(DATA_LEN),
                mtu: MTU,
                report_at,
                arrivals: report_at.is_some(),
            })
        };
        self.server.command(&part(6, None))?;
        self.server.report(&mut [&mut self.back, &mut self.client])?; // connected
        self.client.command(&part(5, Some(6)))?;
        self.client.report(&mut [&mut self.back, &mut self.server])?;
        Ok(())
    }

    /// Returns the server's next report. Reports of progress are displayed and not returned.
    pub fn server_report(&mut self) -> Result<Report> {
        loop {
            match self.server.report(&mut [&mut self.back, &mut self.client])? {
                Report::Moved(bytes) => self.progress.show_long(format_args!(
                    "   transferring: {} of {} MiB",
                    bytes >> 20,
                    TRANSFER_BYTES >> 20
                )),
                report => return Ok(report),
            }
        }
    }

    /// Waits for the transfer's end, and removes the vifs. Damage is an error.
    pub fn end(&mut self) -> Result<Done> {
        let received = match self.server_report() {
            Ok(report) => transferred(report)?,
            // It waits as long as its peer: the process that failed first has the better error.
            Err(why) => return Err(self.client.report(&mut [&mut self.back]).err().unwrap_or(why)),
        };
        self.progress.clear();
        let sent = transferred(self.client.report(&mut [&mut self.back, &mut self.server])?)?;
        for front in [CLIENT, SERVER] {
            self.testbed.remove_vif(front, 0)?;
        }
        let switched = answer!(self.back.report(&mut [])?, Report::Switch(switched) => switched);
        if (sent.bytes, sent.sum) != (received.bytes, received.sum) {
            return Err(format!(
                "the transfer is damaged: {} bytes with sum {:016x} were sent, {} bytes with sum {:016x} arrived",
                sent.bytes, sent.sum, received.bytes, received.sum
            )
            .into());
        }
        Ok(Done { sent, received, switched })
    }
}

fn transferred(report: Report) -> Result<Transferred> {
    Ok(answer!(report, Report::Transfer(t) => *t))
}

/// The result of a transfer whose checksums were equal at both ends.
pub struct Done {
    pub sent: Transferred,
    pub received: Transferred,
    /// The report of the back that served the transfer until its end.
    pub switched: Switched,
}

impl Done {
    /// Formats the bytes, the time and the checksum as a line.
    pub fn summary(&self) -> String {
        format!(
            "{} bytes in {:.2} s, {} Gbit/s; sum {:016x} at both ends: equal",
            self.received.bytes,
            self.sent.seconds,
            figure(self.received.bytes as f64 * 8.0 / self.sent.seconds / 1e9),
            self.received.sum
        )
    }

    /// Returns the number of frames that both guests' vifs sent and received.
    pub fn frames(&self) -> u64 {
        self.sent.frames.iter().chain(&self.received.frames).sum()
    }

    /// Returns the number of these frames that used staging buffers.
    pub fn staged(&self) -> u64 {
        self.sent.staged.iter().chain(&self.received.staged).sum()
    }

    /// Number of frames that reached the back's ports twice, and number that no guest got although
    /// its queue had room, by their numbers.
    ///
    /// A frame comes twice when the back died between the port and the answer; what the port had
    /// was in the dead process's switch, so no guest gets it twice. A frame that came to no port is
    /// an error: that must not happen.
    pub fn repeated_and_lost(&self) -> Result<(u64, u64)> {
        let (client, server) = (self.sent.numbers, self.received.numbers);
        let missing = |from: Numbered, to: Numbered| to.missing + from.sent.saturating_sub(to.next);
        let SwitchFrames { seen, repeated, missing: unseen, overflow, left } = self.switched.frames;
        let (sent, again) = (client.sent + server.sent, client.again + server.again);
        if unseen > 0 || seen != sent || again > 0 {
            return Err(format!(
                "of {sent} frames that guests sent the ports saw {seen}, and {unseen} before one that they saw are missing; \
                 {again} came to a guest twice or late: answered requests were not served, or frames were made up"
            )
            .into());
        }
        let not_got = missing(client, server) + missing(server, client);
        Ok((repeated, not_got.saturating_sub(overflow + left)))
    }

    /// Returns the number of sleeps in all processes that ended by timeout although work was
    /// pending.
    pub fn missed_wakeups(&self) -> u64 {
        self.sent.missed_wakeups + self.received.missed_wakeups + self.switched.missed_wakeups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the result of a transfer in which the client sent 10 frames and the server 5.
    fn done(to_server: Numbered, frames: SwitchFrames) -> Done {
        let client = Numbered { sent: 10, next: 5, ..Numbered::default() };
        let of = |numbers| Transferred { numbers, ..Transferred::default() };
        let switched = Switched { frames, ..Switched::default() };
        Done { sent: of(client), received: of(to_server), switched }
    }

    #[test]
    fn a_frame_that_comes_twice_makes_up_for_none_that_is_lost() {
        let all = Numbered { sent: 5, next: 10, ..Numbered::default() };
        let seen = SwitchFrames { seen: 15, ..SwitchFrames::default() };
        assert_eq!(done(all, seen).repeated_and_lost().unwrap(), (0, 0));
        let twice = SwitchFrames { repeated: 2, ..seen };
        let two_lost = Numbered { next: 9, missing: 1, ..all };
        assert_eq!(done(two_lost, twice).repeated_and_lost().unwrap(), (2, 2));
        let dropped = SwitchFrames { overflow: 1, left: 1, ..twice };
        assert_eq!(done(two_lost, dropped).repeated_and_lost().unwrap(), (2, 0));
        // One came to no port, and another twice: as many as were sent, and yet not those.
        let unseen = SwitchFrames { seen: 14, missing: 1, repeated: 1, ..seen };
        assert!(done(all, unseen).repeated_and_lost().is_err());
        // The same at a guest.
        let again = Numbered { missing: 1, again: 1, ..all };
        assert!(done(again, seen).repeated_and_lost().is_err());
    }
}
