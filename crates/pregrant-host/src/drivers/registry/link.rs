//! What becomes of vifs with time: frames for guests expire, guests that take none lose their link, and those with a rate
//! wait for their credit (docs/protocol 6).
//!
//! ```text
//!   control()  --watch_links--> each vif's turn --link changed--> PortProvider::link     (a tap's carrier)
//!   before sleeping: due()      the first moment at which a vif wants the worker awake  (sleep)
//! ```
//! A guest that goes up and down without end uses up its lines in the log and is then counted only.

use super::Backend;
use log::Level;
use pregrant::platform::Platform;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenstore::Transport;

impl<P: Platform, T: Transport> Backend<P, T> {
    /// Each live vif's control turn.
    pub(super) fn watch_links(&mut self) {
        let mut fault = None;
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            match served.vif.turn(&self.platform, &mut served.ports) {
                Ok(None) => {}
                Ok(Some(up)) => {
                    served.log.failed(Level::Info, self.far.link(&served.device.id(), up));
                    let was = std::mem::replace(&mut served.stalled, !up);
                    if !up {
                        served.say(
                            Level::Warn,
                            &"its guest takes no frames: link down until it posts RX slots",
                        );
                    } else if was {
                        served.say(Level::Info, &"its guest takes frames again: link up");
                    }
                }
                Err((queue, e)) => fault = Some((key, queue, "rx", e)),
            }
        }
        if let Some(fault) = fault {
            self.fault(fault);
        }
    }

    /// The toolstack changed how much a guest may send.
    pub(super) fn reload_rate(&mut self, key: (u16, u32)) {
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        if served.vif.nr_queues() > 0
            && let Err(e) = served.vif.reload_rate(&self.platform, &mut bus)
        {
            served.say(Level::Warn, &e);
        }
        served.tell_rate();
    }
}
