//! A hostile back on real Xen: takes a vif through states 2, 4, 5 and 6 again and again, and never
//! unmaps a page.
//!
//! Root in dom0, where nothing else serves the vif: `cycling_back DOMID TURNS`. A line every 20
//! turns, and the status says whether the front ever granted it more than in the first one. `cargo
//! xtask rig 81-cycling-back` plays it.

use pregrant::net::features::BackFeatures;
use pregrant::net::path::staging::keys::active_key;
use pregrant::net::path::staging::list as staging_list;
use pregrant::platform::{Access, PeerMem, Platform};
use pregrant::shm::SharedBytes;
use pregrant::wire::staging::ENTRIES_PER_PAGE;
use pregrant::xenbus::{Class, DeviceId};
use pregrant::xenstore::Client;
use pregrant::{DomId, GrantRef};
use pregrant_host::UnixTransport;
use pregrant_host::linux::Xen;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Map = <<Xen as Platform>::Peer as PeerMem>::Map;

/// How long a front may take to any step: in an emulator on a busy machine, long.
const PATIENCE: Duration = Duration::from_secs(400);
/// Interval of checks of its state.
const CHECK: Duration = Duration::from_millis(50);

struct Back {
    xs: Client<UnixTransport>,
    xen: Xen,
    id: DeviceId,
    maps: BTreeMap<u32, Map>,
}

impl Back {
    fn write(&mut self, key: &str, value: &str) -> Result<()> {
        Ok(self.xs.write(&format!("{}/{key}", self.id.back_dir()), value)?)
    }

    fn front(&mut self, key: &str) -> Result<Option<String>> {
        let value = self.xs.read_if_there(&format!("{}/{key}", self.id.front_dir()))?;
        Ok(value.map(|v| String::from_utf8_lossy(&v).into_owned()))
    }

    /// Waits until the front's state is one of these.
    fn await_front(&mut self, states: &[&str]) -> Result<()> {
        let start = Instant::now();
        loop {
            let state = self.front("state")?.unwrap_or_default();
            if states.contains(&state.as_str()) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(
                    format!("the front stays in state {state:?}, and does not come to {states:?}").into()
                );
            }
            std::thread::sleep(CHECK);
        }
    }

    fn number(&mut self, key: &str) -> Result<Option<u32>> {
        self.front(key)?.map(|text| Ok(text.trim().parse()?)).transpose()
    }

    /// Maps what is not mapped yet.
    fn map(&mut self, gref: u32, acc: Access) -> Result<&Map> {
        if !self.maps.contains_key(&gref) {
            let map = self.xen.peer().map(self.id.front, &[GrantRef(gref)], acc);
            let map = map.map_err(|e| format!("grant {gref} cannot be mapped: {}", e.status))?;
            self.maps.insert(gref, map);
        }
        Ok(&self.maps[&gref])
    }

    /// Closes, and waits for the front to do the same.
    fn close(&mut self) -> Result<()> {
        self.write("state", "5")?;
        self.await_front(&["5", "6", "1"])?;
        self.write("state", "6")?;
        self.await_front(&["6", "1"])
    }

    fn turn(&mut self) -> Result<()> {
        for (key, value) in BackFeatures::default().pairs() {
            self.write(&key, &value)?;
        }
        self.write("state", "2")?;
        self.await_front(&["4"])?;
        let queues = self.number("multi-queue-num-queues")?.unwrap_or(1) as usize;
        let mut rx_ring = 0;
        for i in 0..queues {
            let active = active_key(i, queues);
            let queue = active.strip_suffix("staging-grants-active").unwrap_or_default().to_string();
            for (dir, acc) in [("tx", Access::ReadOnly), ("rx", Access::ReadWrite)] {
                rx_ring = self.number(&format!("{queue}{dir}-ring-ref"))?.ok_or("no ring")?;
                self.map(rx_ring, Access::ReadWrite)?;
                let Some(list) = self.number(&format!("{queue}{dir}-data-ref0"))? else { continue };
                let entries =
                    staging_list::read(self.map(list, Access::ReadOnly)?, ENTRIES_PER_PAGE).expect("memory");
                for entry in entries.iter().filter(|entry| entry.gref != 0) {
                    self.map(entry.gref, acc)?;
                }
            }
            self.write(&active, "1")?;
        }
        self.write("state", "4")?;
        // Its requests are posted: the front is connected.
        let start = Instant::now();
        while self.maps[&rx_ring].load_u32(0) == Some(0) {
            if start.elapsed() > PATIENCE {
                return Err("the front posts nothing".into());
            }
            std::thread::sleep(CHECK);
        }
        self.close()
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u16>());
    let (Some(front), Some(turns)) = (args.next().transpose()?, args.next().transpose()?) else {
        return Err("cycling_back DOMID TURNS".into());
    };
    let xen = Xen::open(DomId(0))?;
    xen.ready_for_back()?;
    let id = DeviceId { class: Class::VIF, front: DomId(front), back: DomId(0), handle: 0 };
    let mut back = Back { xs: Client::new(UnixTransport::find()?), xen, id, maps: BTreeMap::new() };
    back.close()?;
    let start = Instant::now();
    let mut first = 0;
    for turn in 1..=turns {
        back.turn()?;
        if turn == 1 {
            first = back.maps.len();
        }
        if turn % 20 == 0 || turn == 1 {
            println!("turn {turn}: {} pages are mapped, {} s", back.maps.len(), start.elapsed().as_secs());
        }
        if back.maps.len() > first {
            return Err(format!(
                "turn {turn}: {} pages are granted, after {first} in the first",
                back.maps.len()
            )
            .into());
        }
    }
    println!("{turns} turns: {first} pages throughout");
    Ok(())
}
