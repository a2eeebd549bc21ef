//! Figures of other programs on the same machine and in the same run: fio on a file, straight and
//! through an NBD server, and a client of a vhost-user-blk server.
//!
//! ```text
//!   nbd             fio --ioengine=nbd --unix socket--> qemu-storage-daemon --> FILE
//!   io_uring        fio --ioengine=io_uring ----------------------------------> FILE
//!   vhost-user-blk  this process (vhost_user) --ring--> qemu-storage-daemon --> FILE of its own
//! ```
//! Files are in memory (/dev/shm) where there is such a place. Both ends are pinned as guests and
//! backends are: fio and the client to the first core, the server to the second. Absent programs
//! are named, and left out.

use super::storage_daemon::{Export, FILE_BYTES, Folder, StorageDaemon};
use super::{BlkArgs, Dir, Row};
use crate::bench::Result;
use crate::bench::core_placement::CorePlacement;
use crate::bench::output::Run;
use crate::bench::program::{is_there, pinned};
use crate::columns::Columns;
use crate::record::repeats::Repeats;
use crate::record::stats::Summary;
use crate::record::{Disk, Of, Record, Took};
use pregrant::blk::path::PathName;
use pregrant_testbed::process::disks::disks_command::Load;
use pregrant_testbed::process::disks::vhost_user::VhostUserDisk;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program that sends an anchor's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Client {
    Fio(&'static str),
    VhostUser,
}

/// A figure for comparison, measured in turn with the rows.
struct Anchor {
    client: Client,
    dir: Dir,
    size: u32,
    depth: u16,
    records: Repeats,
}

impl Anchor {
    fn path(&self) -> String {
        match self.client {
            Client::Fio(engine) => format!("fio-{engine}"),
            Client::VhostUser => VHOST_USER.into(),
        }
    }

    /// Creates the record of an anchor that has counted nothing yet.
    fn record(&self) -> Record {
        let mut record = Record::new("blk", &self.path(), self.dir.name(), self.size.into());
        record.depth = Some(self.depth.into());
        record.of = Of::Disk(Disk { guests: 1, ..Disk::default() });
        record.platform = "host".into();
        record
    }
}

/// The name of the anchor's path.
pub const VHOST_USER: &str = "vhost-user-blk";

#[derive(Default)]
pub struct Anchors {
    fio: Option<Fios>,
    vhost_user: Option<VhostUser>,
    all: Vec<Anchor>,
    /// Anchors that are not measured, each with the reason.
    missing: Vec<String>,
    folder: Option<Folder>,
}

/// A vhost-user-blk server with its client. The client must be dropped first.
pub struct VhostUser {
    disk: VhostUserDisk,
    core: Option<usize>,
    _server: StorageDaemon,
}

impl VhostUser {
    /// Starts a server on a file of its own, for `depth` requests of `size` bytes in flight. `Err`:
    /// the reason why it cannot be started.
    pub fn start(folder: &Folder, depth: usize, size: usize) -> std::result::Result<Self, String> {
        let start = || -> Result<_> {
            let (file, socket) = (folder.file("vhost-user")?, folder.dir.join("vhost-user.sock"));
            let server = StorageDaemon::start(Export::VhostUser, &file, &socket)?;
            let disk = VhostUserDisk::connect(&socket, depth, size)?;
            Ok(Self { disk, core: CorePlacement::of(1)?.guest, _server: server })
        };
        start().map_err(|e| e.to_string())
    }

    /// Measures a load, and fills in the results in the record.
    pub fn measure(&mut self, load: &Load, seconds: f64, record: &mut Record) -> Result<()> {
        let played = self.disk.play(load, self.core, seconds)?;
        record.count(played.requests, played.seconds);
        record.frontend_cpu_ns = played.cpu_ns;
        record.lost = played.rested.failed;
        record.damaged = Some(played.rested.damaged);
        record.checked = Some(played.rested.checked);
        record.set_latencies(&played.rested.latency);
        Ok(())
    }
}

/// A file that fio reads and writes, and the server for one of fio's engines.
struct Fios {
    file: PathBuf,
    socket: PathBuf,
    core: Option<usize>,
    _server: Option<StorageDaemon>,
}

impl Fios {
    fn run(&self, engine: &str, anchor: &Anchor, seconds: f64) -> Result<Fio> {
        let mut command = pinned("fio", self.core);
        let rw = match anchor.dir {
            Dir::Read => "randread",
            Dir::Write => "randwrite",
            Dir::Mixed => "randrw",
        };
        command.args([
            "--name=anchor",
            "--output-format=json",
            "--time_based",
            "--norandommap",
            "--randrepeat=0",
        ]);
        command.arg(format!("--ioengine={engine}")).arg(format!("--rw={rw}"));
        command.arg(format!("--bs={}", anchor.size)).arg(format!("--iodepth={}", anchor.depth));
        // fio counts whole milliseconds; what it does before is not counted.
        command.arg(format!("--runtime={}ms", (seconds * 1e3).ceil().max(1.0))).arg("--ramp_time=20ms");
        command.arg(format!("--size={FILE_BYTES}"));
        if engine == "nbd" {
            command.arg(format!("--uri=nbd+unix:///disk?socket={}", self.socket.display()));
        } else {
            command.arg(format!("--filename={}", self.file.display()));
        }
        let out = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run fio: {e}"))?;
        if !out.status.success() {
            return Err(
                format!("fio --ioengine={engine} failed ({}); its lines are above", out.status).into()
            );
        }
        Fio::read(&out.stdout)
    }
}

struct Fio {
    requests: u64,
    seconds: f64,
    p50_ns: u64,
    p99_ns: u64,
    cpu_ns: u64,
}

impl Fio {
    /// Parses fio's output. Some of fio's engines print a line of their own before the JSON.
    fn read(out: &[u8]) -> Result<Self> {
        let begin = out.iter().position(|byte| *byte == b'{').ok_or("fio said nothing")?;
        let said: serde_json::Value = serde_json::from_slice(&out[begin..])?;
        let job = &said["jobs"][0];
        let ways = [&job["read"], &job["write"]];
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
        let requests: f64 = ways.iter().map(|way| number(&way["total_ios"])).sum();
        let ms = ways.iter().map(|way| number(&way["runtime"])).fold(0.0, f64::max);
        // Of a mixed load those of the slower half.
        let at = |part: &str| {
            ways.iter().map(|way| number(&way["clat_ns"]["percentile"][part])).fold(0.0, f64::max)
        };
        if requests == 0.0 || ms == 0.0 {
            return Err("fio counted no request".into());
        }
        let share = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
        let [p50_ns, p99_ns] = ["50.000000", "99.000000"].map(|part| at(part) as u64);
        Ok(Self {
            requests: requests as u64,
            seconds: ms / 1e3,
            p50_ns,
            p99_ns,
            cpu_ns: (share * ms * 1e6) as u64,
        })
    }
}

impl Anchors {
    /// Creates the files and starts the servers.
    pub fn start(args: &BlkArgs) -> Result<Self> {
        let mut anchors = Self::default();
        let folder = Folder::make("anchors")?;
        let mut clients = Vec::new();
        if is_there("fio") {
            let (file, socket) = (folder.file("disk")?, folder.dir.join("nbd.sock"));
            let known = Command::new("fio").arg("--enghelp").output()?;
            let server = if String::from_utf8_lossy(&known.stdout).lines().any(|line| line.trim() == "nbd") {
                StorageDaemon::start(Export::Nbd, &file, &socket)
            } else {
                Err("this fio has no such engine".into())
            };
            match &server {
                Ok(_) => clients.push(Client::Fio("nbd")),
                Err(why) => anchors.missing.push(format!("fio's nbd engine: {why}")),
            }
            clients.push(Client::Fio("io_uring"));
            let core = CorePlacement::of(1)?.guest;
            anchors.fio = Some(Fios { file, socket, core, _server: server.ok() });
        } else {
            anchors.missing.push("fio is not installed (Debian: apt install fio)".into());
        }
        let most = |of: Option<usize>| of.unwrap_or(1);
        let depth = most(args.depth.iter().map(|&depth| depth.into()).max());
        let size = most(args.size.iter().map(|&size| size as usize).max());
        match VhostUser::start(&folder, depth, size) {
            Ok(vhost_user) => {
                anchors.vhost_user = Some(vhost_user);
                clients.push(Client::VhostUser);
            }
            Err(why) => anchors.missing.push(format!("{VHOST_USER}: {why}")),
        }
        for client in clients {
            for &dir in &args.dir {
                for &size in &args.size {
                    for &depth in &args.depth {
                        anchors.all.push(Anchor { client, dir, size, depth, records: Repeats::default() });
                    }
                }
            }
        }
        anchors.folder = Some(folder);
        Ok(anchors)
    }

    pub fn measure(&mut self, seconds: f64, run: &mut Run) -> Result<()> {
        for anchor in &mut self.all {
            let (path, dir, size, depth) = (anchor.path(), anchor.dir, anchor.size, anchor.depth);
            run.progress.show(format_args!("{path} {dir} {size} B, depth {depth}"));
            let mut record = anchor.record();
            match (anchor.client, &self.fio, &mut self.vhost_user) {
                (Client::Fio(engine), Some(fio), _) => {
                    let said = fio.run(engine, anchor, seconds)?;
                    record.count(said.requests, said.seconds);
                    record.mode = "event".into();
                    record.frontend_cpu_ns = said.cpu_ns;
                    let (latency_p50_ns, latency_p99_ns) = (said.p50_ns, said.p99_ns);
                    record.took = Some(Took { latency_p50_ns, latency_p99_ns, ..Took::default() });
                }
                (Client::VhostUser, _, Some(vhost_user)) => {
                    // At multiples of 4096, as ours: then any depth's parts of the disk have room.
                    let load = Load::of(dir, size as usize, 4096, depth.into());
                    vhost_user.measure(&load, seconds, &mut record)?;
                }
                _ => continue,
            }
            run.write(anchor.records.push(record))?;
        }
        Ok(())
    }

    /// Formats a table of the anchors' results, with the rate of one guest's `persistent` relative
    /// to each.
    pub fn table(&self, rows: &[Row]) -> String {
        let gain = |anchor: &Anchor| -> Option<Summary> {
            // A disk on a file too, where there is one.
            let row = rows.iter().rev().find(|row| {
                let plan = row.plan;
                row.greedy.is_none()
                    && (plan.path, plan.guests, plan.workers) == (PathName::Persistent, 1, 1)
                    && (row.dir, row.size, row.align, row.depth)
                        == (anchor.dir, anchor.size as usize, 4096, anchor.depth.into())
            })?;
            row.records.ratio(&anchor.records)
        };
        let t = Columns::of(self.all.iter().filter(|anchor| anchor.records.rate().is_some()))
            .left("anchor", Anchor::path)
            .left("dir", |anchor| anchor.dir)
            .right("size B", |anchor| anchor.size)
            .right("depth", |anchor| anchor.depth)
            .ranged("k IOPS", 1e3, |anchor| anchor.records.rate())
            .median("latency us", 1e3, |anchor| anchor.records.middle(Record::p50))
            .median("99 %", 1e3, |anchor| anchor.records.middle(Record::p99))
            .ranged("persistent, times this", 1.0, gain)
            .all();
        let mut text = t.to_string();
        if let (Some(folder), false) = (&self.folder, self.all.is_empty()) {
            text += if folder.in_memory {
                "The anchors' files are in memory (/dev/shm)"
            } else {
                "The anchors' files are on a disk"
            };
            text += ", 256 MiB. fio: its file by itself, and served by qemu-storage-daemon over a unix socket. vhost-user-blk: served by its \
                     I/O thread with io_uring; the client (blkio, ring of 256) polls, copies and checks as our guests do. fio and the client on \
                     the guests' core, the servers on the backend's; in turn with the rows.\n";
        }
        for what in &self.missing {
            text += &format!("Not measured: {what}.\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says_is_found_behind_what_its_engine_says() {
        let read = r#"{"total_ios": 3000, "runtime": 300, "clat_ns": {"percentile": {"50.000000": 900, "99.000000": 1500}}}"#;
        let write = r#"{"total_ios": 0, "runtime": 0}"#;
        let text = format!(
            "fio: connected to NBD server\n{{\"jobs\": [{{\"read\": {read}, \"write\": {write}, \"usr_cpu\": 20, \"sys_cpu\": 30}}]}}"
        );
        let said = Fio::read(text.as_bytes()).unwrap();
        assert_eq!((said.requests, said.seconds, said.p50_ns, said.p99_ns), (3000, 0.3, 900, 1500));
        assert_eq!(said.cpu_ns, 150_000_000);
        assert!(Fio::read(b"fio: no such engine\n").is_err());
        assert!(Fio::read(br#"{"jobs": [{"read": {"total_ios": 0}}]}"#).is_err());
    }
}
