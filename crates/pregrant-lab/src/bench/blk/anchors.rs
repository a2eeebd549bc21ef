//! Figures of other programs on the same machine and in the same run: fio on a file, straight and
//! through an NBD server.
//!
//! ```text
//!   nbd       fio --ioengine=nbd --unix socket--> qemu-storage-daemon --> FILE
//!   io_uring  fio --ioengine=io_uring ----------------------------------> FILE
//! ```
//! FILE is in memory (/dev/shm) where there is such a place. Both are pinned as guests and backends
//! are: fio to the first core, the server to the second. Absent programs are named, and left out.

use super::{BlkArgs, Dir, Row};
use crate::bench::Result;
use crate::bench::core_placement::CorePlacement;
use crate::bench::output::Run;
use crate::bench::program::{is_there, pinned};
use crate::record::repeats::Repeats;
use crate::record::stats::Summary;
use crate::record::{Disk, Of, Record, Took};
use crate::table::Table;
use pregrant::blk::path::PathName;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of the file.
const FILE_BYTES: usize = 256 << 20;
/// How long a server has for its socket.
const PATIENCE: Duration = Duration::from_secs(10);

/// One figure that is measured in turn with the rows.
struct Anchor {
    engine: &'static str,
    dir: Dir,
    size: u32,
    depth: u16,
    records: Repeats,
}

/// See the module.
#[derive(Default)]
pub struct Anchors {
    place: Option<Place>,
    all: Vec<Anchor>,
    /// Anchors that are not measured, and why.
    missing: Vec<String>,
}

/// A directory with the file and the server's socket; both are gone with it.
struct Place {
    dir: PathBuf,
    server: Option<Child>,
    /// fio's core.
    core: Option<usize>,
    in_memory: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill(); // it may have ended
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Place {
    fn make() -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let in_memory = memory.is_dir();
        let base = if in_memory { memory.into() } else { std::env::temp_dir() };
        let dir = base.join(format!("pregrant-anchors-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        let place = Self { dir, server: None, core: CorePlacement::of(1)?.guest, in_memory };
        let mut file = File::create(place.file())?;
        // Real bytes: a hole is not read from anywhere.
        let block = vec![0x5a; 1 << 20];
        for _ in 0..FILE_BYTES / block.len() {
            file.write_all(&block).map_err(|e| format!("cannot write {}: {e}", place.file().display()))?;
        }
        Ok(place)
    }

    fn file(&self) -> PathBuf {
        self.dir.join("disk")
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    /// Starts the server. False: it is not installed.
    fn serve(&mut self) -> Result<bool> {
        let core = CorePlacement::of(1)?.workers.first().copied();
        let mut command = pinned("qemu-storage-daemon", core);
        command
            .args(["--blockdev", &format!("driver=file,node-name=file,filename={}", self.file().display())]);
        command.args(["--blockdev", "driver=raw,node-name=disk,file=file"]);
        command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", self.socket().display())]);
        command.args(["--export", "type=nbd,id=disk,node-name=disk,writable=on,name=disk"]);
        if !is_there("qemu-storage-daemon") {
            return Ok(false);
        }
        self.server = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        let until = Instant::now() + PATIENCE;
        while !self.socket().exists() {
            if Instant::now() > until {
                return Err(format!(
                    "qemu-storage-daemon has no socket after {PATIENCE:?}; its lines are above"
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }

    fn fio(&self, anchor: &Anchor, seconds: f64) -> Result<Fio> {
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
        command.arg(format!("--ioengine={}", anchor.engine)).arg(format!("--rw={rw}"));
        command.arg(format!("--bs={}", anchor.size)).arg(format!("--iodepth={}", anchor.depth));
        // fio counts whole milliseconds; what it does before is not counted.
        command.arg(format!("--runtime={}ms", (seconds * 1e3).ceil().max(1.0))).arg("--ramp_time=20ms");
        command.arg(format!("--size={FILE_BYTES}"));
        if anchor.engine == "nbd" {
            command.arg(format!("--uri=nbd+unix:///disk?socket={}", self.socket().display()));
        } else {
            command.arg(format!("--filename={}", self.file().display()));
        }
        let out = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run fio: {e}"))?;
        if !out.status.success() {
            return Err(format!(
                "fio --ioengine={} failed ({}); its lines are above",
                anchor.engine, out.status
            )
            .into());
        }
        Fio::read(&out.stdout)
    }
}

/// The output of fio.
struct Fio {
    requests: u64,
    seconds: f64,
    p50_ns: u64,
    p99_ns: u64,
    cpu_ns: u64,
}

impl Fio {
    /// Its engines print a line of their own before.
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
    /// Makes the file, starts the server.
    pub fn start(args: &BlkArgs) -> Result<Self> {
        let mut anchors = Self::default();
        if !is_there("fio") {
            anchors.missing.push("fio is not installed (Debian: apt install fio): no anchors".into());
            return Ok(anchors);
        }
        let mut place = Place::make()?;
        let mut engines = vec!["io_uring"];
        let known = Command::new("fio").arg("--enghelp").output()?;
        if !String::from_utf8_lossy(&known.stdout).lines().any(|line| line.trim() == "nbd") {
            anchors.missing.push("this fio has no nbd engine: that anchor is left out".into());
        } else if !place.serve()? {
            anchors.missing.push("qemu-storage-daemon is not installed (Debian: apt install qemu-system-common): no nbd anchor".into());
        } else {
            engines.insert(0, "nbd");
        }
        for engine in engines {
            for &dir in &args.dir {
                for &size in &args.size {
                    for &depth in &args.depth {
                        anchors.all.push(Anchor { engine, dir, size, depth, records: Repeats::default() });
                    }
                }
            }
        }
        anchors.place = Some(place);
        Ok(anchors)
    }

    /// One repeat of each.
    pub fn measure(&mut self, seconds: f64, run: &mut Run) -> Result<()> {
        let Some(place) = &self.place else { return Ok(()) };
        for anchor in &mut self.all {
            let (engine, dir, size, depth) = (anchor.engine, anchor.dir, anchor.size, anchor.depth);
            run.progress.show(format_args!("fio {engine} {dir} {size} B, depth {depth}"));
            let said = place.fio(anchor, seconds)?;
            let mut record = Record::new("blk", &format!("fio-{engine}"), dir.name(), size.into());
            record.count(said.requests, said.seconds);
            record.depth = Some(depth.into());
            record.of = Of::Disk(Disk { guests: 1, ..Disk::default() });
            record.platform = "host".into();
            record.mode = "event".into();
            record.frontend_cpu_ns = said.cpu_ns;
            record.took =
                Some(Took { latency_p50_ns: said.p50_ns, latency_p99_ns: said.p99_ns, ..Took::default() });
            run.write(anchor.records.push(record))?;
        }
        Ok(())
    }

    /// Their results, and one guest's `persistent` relative to them.
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
        let t = Table::of(self.all.iter().filter(|anchor| anchor.records.rate().is_some()))
            .left("anchor", |anchor| format!("fio {}", anchor.engine))
            .left("dir", |anchor| anchor.dir)
            .right("size B", |anchor| anchor.size)
            .right("depth", |anchor| anchor.depth)
            .ranged("k IOPS", 1e3, |anchor| anchor.records.rate())
            .median("latency us", 1e3, |anchor| anchor.records.middle(Record::p50))
            .median("99 %", 1e3, |anchor| anchor.records.middle(Record::p99))
            .ranged("persistent, times this", 1.0, gain)
            .all();
        let mut text = t.to_string();
        if let Some(place) = &self.place {
            text += if place.in_memory {
                "The anchors' file is in memory (/dev/shm)"
            } else {
                "The anchors' file is on a disk"
            };
            text += ", 256 MiB, served by qemu-storage-daemon over a unix socket, and by itself; fio on the guests' core, the server on the \
                     backend's; in turn with the rows.\n";
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
