//! A machine with broker, xenstored and toolstack in this process, and backs as child processes that may be killed.

use pregrant::DomId;
use pregrant::xenbus::toolstack::{self, Vbd};
use pregrant::xenbus::{Class, DeviceId};
use pregrant::xenstore::Client;
use pregrant_host::drivers::wait::UNBOUNDED;
use pregrant_host::loopback::{Audit, Broker, DomainSpec, Hooks, Loopback};
use pregrant_host::xenstored::{Handle, UnixTransport, Xenstored};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub const BACK: DomId = DomId(0);
pub const GUEST: DomId = DomId(5);
/// xvda.
pub const VBD: u32 = 51712;
/// The environment variable that bounds the length of files that a back writes to.
pub const LIMIT: &str = "PREGRANT_TEST_FILE_LIMIT";

/// A file that goes with its test.
pub struct Image(pub PathBuf);

impl Image {
    pub fn new(bytes: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // On a file system, where holes and direct I/O may be had.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("vbd-{}-{n}", std::process::id()));
        File::create(&path).unwrap().set_len(bytes).unwrap();
        Self(path)
    }

    pub fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.0).unwrap()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// See the module.
pub struct World {
    socket: PathBuf,
    pub broker: Broker,
    store: Handle,
    thread: Option<JoinHandle<()>>,
    toolstack: Client<UnixTransport>,
    _keeper: Loopback,
    empty: Audit,
}

fn vbd() -> DeviceId {
    DeviceId { class: Class::VBD, front: GUEST, back: BACK, handle: VBD }
}

impl World {
    /// A guest with a disk, which it may write to.
    pub fn new(image: &Path) -> Self {
        Self::with(image, true)
    }

    pub fn with(image: &Path, writable: bool) -> Self {
        let socket = std::env::temp_dir().join(format!("pregrant-disks-{}.sock", std::process::id()));
        let mut server = Xenstored::new().unwrap();
        server.introduce(BACK).ok(); // may be known from the start
        let store = server.handle();
        let thread = std::thread::spawn(move || server.run(None).unwrap());
        let (connect, create, destroy) = (store.clone(), store.clone(), store.clone());
        let hooks = Hooks {
            store: Some(Box::new(move |domid, fd| connect.add_connection(fd, domid).unwrap())),
            created: Box::new(move |domid| create.introduce(domid).unwrap_or(())),
            destroyed: Box::new(move |domid| destroy.release(domid).unwrap_or(())),
        };
        let broker = Broker::start(Some(&socket), hooks).unwrap();
        broker.create_domain(DomainSpec::driver(BACK)).unwrap();
        let keeper = broker.attach(BACK).unwrap();
        let mut toolstack = client(&keeper);
        let empty = broker.audit();
        broker.create_domain(DomainSpec::guest(GUEST)).unwrap();
        let params = image.to_str().unwrap();
        let made = Vbd { writable, ..Vbd::new(GUEST, BACK, (VBD, "xvda"), params) };
        made.create(&mut toolstack).unwrap();
        Self { socket, broker, store, thread: Some(thread), toolstack, _keeper: keeper, empty }
    }

    /// A back; `crash` names where it is to die.
    pub fn back(&self, io: &str, path: &str, crash: Option<String>) -> Back {
        self.start(io, path, |command| {
            if let Some(crash) = crash {
                command.env("PREGRANT_CRASH", crash).stderr(Stdio::null());
            }
        })
    }

    /// One that makes no file longer than this.
    pub fn limited_back(&self, io: &str, bytes: u64) -> Back {
        self.start(io, "copy", |command| {
            command.env(LIMIT, bytes.to_string());
        })
    }

    fn start(&self, io: &str, path: &str, more: impl FnOnce(&mut Command)) -> Back {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("child").arg(&self.socket).args([io, path]);
        command.env(UNBOUNDED, "unbounded").env_remove("PREGRANT_CRASH").env_remove(LIMIT);
        more(&mut command);
        Back(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    /// The guest is gone, or has closed its disk: takes it away, and sees that nothing is left of it.
    pub fn end(mut self, back: Back) {
        self.remove_disk();
        self.finish(back);
    }

    /// The toolstack takes the disk away, when its back has closed it.
    pub fn remove_disk(&mut self) {
        toolstack::request_removal(&mut self.toolstack, &vbd()).unwrap();
        let state = format!("{}/state", vbd().back_dir());
        while self.toolstack.read_if_there(&state).unwrap().as_deref() != Some(b"6") {
            std::thread::sleep(Duration::from_millis(1));
        }
        toolstack::remove(&mut self.toolstack, &vbd()).unwrap();
    }

    /// Nothing is left of the guest and its disk, and then of the back.
    pub fn finish(mut self, mut back: Back) {
        let audit = |what: &str, same: &dyn Fn(&Audit) -> bool| {
            let mut rounds = 0;
            while !same(&self.broker.audit()) {
                rounds += 1;
                assert!(rounds < 20_000, "{what}: left {:?}, wanted {:?}", self.broker.audit(), self.empty);
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        audit("the back keeps something", &|now| now.regions == self.empty.regions);
        back.stop();
        audit("something is left", &|now| *now == self.empty);
        drop(self.toolstack);
        drop(self._keeper);
        drop(self.broker);
        self.store.stop().unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

pub fn client(platform: &Loopback) -> Client<UnixTransport> {
    Client::new(UnixTransport::new(platform.take_store_fd().expect("the broker has a xenstore")).unwrap())
}

/// A back's process.
pub struct Back(Child);

impl Back {
    /// Killed without notice, and waited for.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn is_dead(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Stops in good order: it leaves its disk connected.
    pub fn stop(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
