//! A machine with broker, xenstored and toolstack in this process, and backs as child processes
//! that may be killed.
//!
//! ```text
//!   test's process: toolstack, keeper of domain 0 ---- threads: broker, xenstored
//!   children: backs, whose stdin is their end in good order
//! ```

use pregrant::DomId;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::wait::UNBOUNDED;
use pregrant_loopback::xenstored::{Handle, Xenstored};
use pregrant_loopback::{Audit, Broker, DomainSpec, Hooks, Loopback};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub const BACK: DomId = DomId(0);

pub struct Host {
    pub socket: PathBuf,
    pub broker: Arc<Broker>,
    store: Handle,
    thread: JoinHandle<()>,
    pub toolstack: Client<UnixTransport>,
    /// Keeps the driver domain, whichever of its processes ends.
    pub keeper: Loopback,
    /// The machine's counts without guests and backs.
    pub empty: Audit,
}

impl Host {
    /// Starts a machine with the driver domain; `name` is the name of the broker's socket.
    pub fn start(name: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("pregrant-{name}-{}.sock", std::process::id()));
        let mut server = Xenstored::new().unwrap();
        server.introduce(BACK).ok(); // may be known from the start
        let store = server.handle();
        let thread = std::thread::spawn(move || server.run(None).unwrap());
        let broker = Broker::start(Some(&socket), Hooks::with_store(&store)).unwrap();
        broker.create_domain(DomainSpec::driver(BACK)).unwrap();
        let keeper = broker.attach(BACK).unwrap();
        let toolstack = client(&keeper);
        let empty = broker.audit();
        Self { socket, broker: Arc::new(broker), store, thread, toolstack, keeper, empty }
    }

    /// The command that runs this program as `child` with these arguments, to be a [`Back`];
    /// `crash` names the point at which it must die.
    pub fn child(&self, args: &[&str], crash: Option<String>) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("child").arg(&self.socket).args(args);
        command.env(UNBOUNDED, "unbounded").env_remove("PREGRANT_CRASH");
        if let Some(crash) = crash {
            command.env("PREGRANT_CRASH", crash).stderr(Stdio::null());
        }
        command
    }

    /// The guests are gone, or have closed: the back has forgotten them, and when it has stopped
    /// nothing is left.
    pub fn end(self, mut back: Back) {
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
        drop((self.toolstack, self.keeper, self.broker));
        self.store.stop().unwrap();
        self.thread.join().unwrap();
    }
}

/// The xenstore connection that an attachment brought along.
pub fn client(platform: &Loopback) -> Client<UnixTransport> {
    Client::new(UnixTransport::new(platform.take_store_fd().expect("the broker has a xenstore")).unwrap())
}

/// A back's process; it is killed when the test is over.
pub struct Back(Child);

impl Back {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    /// Killed without notice, and waited for.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// True if the process died by itself.
    pub fn is_dead(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits until its queues are live; its stdout is a pipe.
    pub fn is_live(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "live\n");
    }

    /// Stops in good order: it leaves its devices connected.
    pub fn stop(&mut self) {
        self.begin_to_detach();
        assert!(self.ended_well());
    }

    /// Like `detach`, without waiting for it.
    pub fn begin_to_detach(&mut self) {
        drop(self.0.stdin.take());
    }

    /// Tells it to close its devices and end.
    pub fn begin_to_close(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"close").unwrap();
    }

    /// Waits for its end by itself: whether it was in good order.
    pub fn ended_well(&mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
