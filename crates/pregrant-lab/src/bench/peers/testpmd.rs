//! A pair of DPDK's `dpdk-testpmd` processes: a guest and the other end, which move frames in
//! either direction for as long as they are asked to.
//!
//! ```text
//!   guest (memif client, virtio-user)  core 0  <== shared memory ==>  core 1  the other end (memif server, vhost)
//!      stdin: set fwd txonly, start, stop                             stdin: set fwd rxonly, start, show port stats 0, stop
//! ```
//! Between two rows both sleep. Each process' other thread, which reads its commands, has the other
//! core, and sleeps while frames move.

use super::{Peer, huge_pages};
use crate::bench::program::is_there;
use pregrant_testbed::process::process_command::Dir;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, String>;

/// The time that a process may need to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of each process, in MiB of huge pages.
const MEMORY_MIB: u64 = 64;
/// The time that frames move before they are counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// The first part of the name of the folder with the two processes' socket.
const FOLDER: &str = "pregrant-peers";

pub struct Pair {
    guest: Testpmd,
    back: Testpmd,
    _folder: Folder,
}

/// The folder with the socket of the two processes.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Pair {
    /// Starts both processes on these cores. `Err`: the reason why this peer is not measured.
    pub fn start(peer: Peer, [guest, back]: [usize; 2]) -> Result<Self> {
        for program in ["dpdk-testpmd", "stdbuf"] {
            if !is_there(program) {
                return Err(format!("{program} is not installed (Debian: apt install dpdk-dev coreutils)"));
            }
        }
        huge_pages::ask_for(2 * (MEMORY_MIB << 20))?;
        let folder = std::env::temp_dir().join(format!("{FOLDER}-{}-{peer}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        let folder = Folder(folder);
        let [guest_device, back_device] =
            devices(peer, &folder.0.join("socket")).ok_or("DPDK moves no disk's requests here")?;
        // The one that listens comes first.
        let back_process = Testpmd::start(&back_device, [guest, back], back)?;
        let guest_process = Testpmd::start(&guest_device, [guest, back], guest)?;
        Ok(Self { guest: guest_process, back: back_process, _folder: folder })
    }

    /// Sends frames of `size` bytes for `seconds`; returns how many arrived, and in which time.
    pub fn play(&mut self, dir: Dir, size: u32, seconds: f64) -> Result<(u64, f64)> {
        let (sender, receiver) = match dir {
            Dir::Tx => (&mut self.guest, &mut self.back),
            _ => (&mut self.back, &mut self.guest),
        };
        receiver.order("set fwd rxonly")?;
        sender.order("set fwd txonly")?;
        sender.order(&format!("set txpkts {size}"))?;
        receiver.order("start")?;
        sender.order("start")?;
        let before = receiver.received()?;
        let until = Instant::now() + PATIENCE;
        while receiver.received()?.0 == before.0 {
            if Instant::now() > until {
                return Err(format!("{} has received no frame in {PATIENCE:?}", receiver.device));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(WARM_UP);
        let (first, began) = receiver.received()?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (last, ended) = receiver.received()?;
        for process in [sender, receiver] {
            process.order("stop")?;
            process.until(|line| line == "Done.")?;
        }
        Ok((last - first, (ended - began).as_secs_f64()))
    }
}

/// Returns the devices of the guest and of the other end, as testpmd's `--vdev` options. None: the
/// peer is a disk.
fn devices(peer: Peer, socket: &Path) -> Option<[String; 2]> {
    let socket = socket.display();
    Some(match peer {
        Peer::Memif => ["client", "server"].map(|role| {
            format!("net_memif0,role={role},id=0,bsize=2048,rsize=10,socket={socket},socket-abstract=no")
        }),
        Peer::VhostUser => [
            format!("net_virtio_user0,path={socket},queues=1"),
            format!("net_vhost0,iface={socket},queues=1"),
        ],
        Peer::VhostUserBlk => return None,
    })
}

struct Testpmd {
    device: String,
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Testpmd {
    /// Starts testpmd with this device, forwarding frames on core `own` of these.
    fn start(device: &str, [a, b]: [usize; 2], own: usize) -> Result<Self> {
        let other = if own == a { b } else { a };
        let failed = |e: std::io::Error| format!("cannot start dpdk-testpmd: {e}");
        let (read, write) = std::io::pipe().map_err(failed)?;
        // Its output is a pipe, for which it would keep lines back.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "dpdk-testpmd", "--in-memory", "--single-file-segments", "--no-pci"]);
        command.arg("--no-telemetry").args(["-m", &MEMORY_MIB.to_string()]);
        command.args(["-l", &format!("{a},{b}"), &format!("--main-lcore={other}")]);
        command.arg(format!("--vdev={device}"));
        command.args(["--", "--interactive", "--total-num-mbufs=8192"]);
        command.stdin(Stdio::piped()).stdout(write.try_clone().map_err(failed)?).stderr(write);
        let mut child = command.spawn().map_err(failed)?;
        drop(command); // and its copies of the pipe's end
        let orders = child.stdin.take().ok_or("dpdk-testpmd has no standard input")?;
        let (report, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(read).lines() {
                let Ok(line) = line else { return };
                if report.send(line).is_err() {
                    return;
                }
            }
        });
        let mut process = Self { device: device.into(), child, orders, lines };
        process.until(|line| line == "Done")?;
        Ok(process)
    }

    fn order(&mut self, text: &str) -> Result<()> {
        writeln!(self.orders, "{text}").map_err(|e| format!("dpdk-testpmd ({}): {e}", self.device))
    }

    /// Returns the number of frames that the process has received since it was started, and the
    /// time at which it reported this.
    fn received(&mut self) -> Result<(u64, Instant)> {
        self.order("show port stats 0")?;
        let line = self.until(|line| received(line).is_some())?;
        Ok((received(&line).unwrap_or(0), Instant::now()))
    }

    /// Reads lines until `wanted` accepts one.
    fn until(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let mut last = String::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    let line = line.trim().trim_start_matches("testpmd> ");
                    if wanted(line) {
                        return Ok(line.into());
                    }
                    if line == "testpmd: No probed ethernet devices" {
                        return Err(format!(
                            "dpdk-testpmd has no driver for {}, or the driver refused it: {last} (Debian: apt install librte-net-memif23 \
                             librte-net-vhost23 librte-net-virtio23)",
                            self.device
                        ));
                    }
                    if !line.is_empty() {
                        last = line.into();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "dpdk-testpmd ({}) has not answered in {PATIENCE:?}; its last line: {last}",
                        self.device
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("dpdk-testpmd ({}) has ended; its last line: {last}", self.device));
                }
            }
        }
    }
}

/// Parses the number of received frames in a line of `show port stats`.
fn received(line: &str) -> Option<u64> {
    line.trim_start().strip_prefix("RX-packets:")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_s_count_is_found() {
        assert_eq!(
            received("  RX-packets: 79872      RX-missed: 0          RX-bytes:  5111808"),
            Some(79872)
        );
        assert_eq!(received("  TX-packets: 1          TX-errors: 0"), None);
        assert_eq!(received("  RX-packets:"), None);
    }

    #[test]
    fn each_end_has_its_device() {
        let at = Path::new("/s");
        let [guest, back] = devices(Peer::Memif, at).unwrap();
        assert!(guest.contains("role=client") && back.contains("role=server"), "{guest} {back}");
        let [guest, back] = devices(Peer::VhostUser, at).unwrap();
        assert_eq!((&*guest, &*back), ("net_virtio_user0,path=/s,queues=1", "net_vhost0,iface=/s,queues=1"));
    }
}
