//! A back in a thread of the test, with a model of a disk: it executes a test's orders at any time.

use pregrant::DomId;
use pregrant::blk::back::{BackVbd, VbdConfig};
use pregrant::platform::local::Pages;
use pregrant::shm::SharedBytes;
use pregrant::xenbus::back::PreviousState;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::{Class, Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Access, Client, Permission};
use pregrant_host::UnixTransport;
use pregrant_loopback::Loopback;
use pregrant_testkit::model_disk::ModelDisk;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The disk: xvda of guest 5.
pub const ID: DeviceId = DeviceId { class: Class::VBD, front: DomId(5), back: DomId(0), handle: 51712 };

/// The next step of a back.
pub enum Order {
    /// The back ends at once, and another backend takes over the live rings.
    Die,
    /// The back closes the device, and another backend opens it.
    Reopen,
    /// The image has this many sectors now.
    Resize(u64),
    Stop,
}

pub struct Back {
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Back {
    pub fn start(dir: &Path, disk: ModelDisk) -> Self {
        let (orders, todo) = mpsc::channel();
        let dir = dir.to_path_buf();
        let thread = std::thread::spawn(move || serve(dir, &disk, &todo));
        Self { orders, thread: Some(thread) }
    }

    pub fn order(&self, order: Order) {
        self.orders.send(order).expect("the back's thread lives");
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            assert!(std::thread::panicking(), "the back's thread panicked: see above");
        }
    }
}

pub fn store(dir: &Path) -> Client<UnixTransport> {
    Client::new(UnixTransport::connect(dir.join("xenstored.sock")).expect("xenstored"))
}

/// The keys that a toolstack writes for a disk.
pub fn make_vbd(dir: &Path, mode: &str) {
    let handle = ID.handle.to_string();
    let front = [("backend", ID.back_dir()), ("backend-id", "0".into()), ("device-type", "disk".into())];
    let back = [
        ("frontend", ID.front_dir()),
        ("frontend-id", "5".into()),
        ("online", "1".into()),
        ("mode", mode.into()),
    ];
    let mut xs = store(dir);
    xs.transaction(|t| {
        for (side, keys) in [(Side::Front, &front[..]), (Side::Back, &back[..])] {
            let at = ID.dir(side);
            t.mkdir(&at)?;
            let other = if side == Side::Front { Side::Back } else { Side::Front };
            let owner = Permission::new(Access::None, ID.domid(side));
            t.set_perms(&at, &[owner, Permission::new(Access::Read, ID.domid(other))])?;
            for (key, value) in keys {
                t.write(&format!("{at}/{key}"), value)?;
            }
            t.write(&format!("{at}/virtual-device"), &handle)?;
            t.write(&format!("{at}/state"), "1")?;
        }
        Ok(())
    })
    .expect("the toolstack may");
}

type Kept = BTreeMap<String, Pages>;

fn memory(kept: &mut Kept, name: &str, bytes: usize) -> Option<Box<dyn SharedBytes + Send>> {
    let pages = || Pages::new(bytes.div_ceil(4096));
    Some(Box::new(kept.entry(name.into()).or_insert_with(pages).clone()))
}

fn serve(dir: PathBuf, disk: &ModelDisk, orders: &mpsc::Receiver<Order>) {
    let platform = Loopback::attach(&dir.join("broker.sock"), ID.back).expect("the machine runs");
    let mut xs =
        Client::new(UnixTransport::new(platform.take_store_fd().expect("a store")).expect("a store"));
    let device = Device::new(ID, Side::Back);
    device.watch_peer(&mut xs).expect("it may watch");
    let made =
        |disk: &ModelDisk| BackVbd::new(ID.front, ID.handle, VbdConfig::default(), Box::new(disk.clone()));
    let (mut back, mut kept) = (made(disk), Kept::new());
    loop {
        let mut bus = StoreBus { device: &device, xs: &mut xs };
        match orders.try_recv() {
            Err(mpsc::TryRecvError::Empty) => {}
            Ok(Order::Die) => {
                back = made(disk);
                if back.inherit(&mut bus).expect("keys") == PreviousState::Connected {
                    let kept = &mut |name: &str, bytes| memory(&mut kept, name, bytes);
                    back.reattach(&platform, &mut bus, kept).expect("an honest front");
                }
            }
            // One that is about to connect is not connected.
            Ok(Order::Reopen) if back.state() != XenbusState::Connected => {}
            Ok(Order::Reopen) => {
                back.end(&platform, &mut bus, &mut ()).expect("keys");
                while back.state() != XenbusState::Closed {
                    let kept = &mut |name: &str, bytes| memory(&mut kept, name, bytes);
                    back.step(&platform, &mut bus, kept).expect("an honest front");
                    std::thread::sleep(Duration::from_millis(1));
                }
                back = made(disk);
            }
            Ok(Order::Resize(sectors)) => {
                back.resize(&mut bus, sectors).expect("keys");
            }
            Ok(Order::Stop) | Err(mpsc::TryRecvError::Disconnected) => return,
        }
        let mut moved = 0;
        for queue in back.queues() {
            moved += queue.poll(&platform).expect("an honest front");
        }
        if moved == 0 {
            while xs.next_event(Some(Duration::from_micros(100))).expect("xenstored").is_some() {}
            let kept = &mut |name: &str, bytes| memory(&mut kept, name, bytes);
            back.step(&platform, &mut StoreBus { device: &device, xs: &mut xs }, kept)
                .expect("an honest front");
        }
    }
}
