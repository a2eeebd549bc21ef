//! Two guests that talk TCP through a backend's switch, as often as is asked.

use super::Result;
use crate::actor::order::{Order, Report, SwitchFrames, Switched, Transfer, Transferred};
use crate::bench::table::figure;
use crate::scene::{Actor, Scene};

/// The guests.
pub const CLIENT: u16 = 5;
pub const SERVER: u16 = 6;
/// Octets of a transfer.
pub const TRANSFER_BYTES: u64 = 64 << 20;
/// Octets of a packet.
pub const MTU: usize = 1500;
/// Staging's data length: a frame of 1514 octets fits.
pub const DATA_LEN: u32 = 2048;

/// The machine and its three processes.
pub struct Stage {
    pub scene: Scene,
    pub back: Actor,
    pub client: Actor,
    pub server: Actor,
}

impl Stage {
    /// Starts them; there are no vifs yet.
    pub fn start() -> Result<Self> {
        let scene = Scene::start()?;
        scene.guest_domain(CLIENT)?;
        scene.guest_domain(SERVER)?;
        let back = scene.actor("back", 0, None)?;
        let client = scene.actor("guest", CLIENT, None)?;
        let server = scene.actor("guest", SERVER, None)?;
        Ok(Self { scene, back, client, server })
    }

    /// Makes the vifs and begins a transfer; returns when both are connected. With `tell_at`, the server reports when so
    /// many octets are there, and both guests when frames arrived.
    pub fn begin(&mut self, tell_at: Option<u64>) -> Result<()> {
        self.back.order(&Order::Switch { vifs: 2, succeed: false })?;
        for front in [CLIENT, SERVER] {
            self.scene.make_vif(front, 0)?;
        }
        let part = |own, to| {
            Order::Transfer(Transfer {
                own,
                to,
                bytes: TRANSFER_BYTES,
                data_len: Some(DATA_LEN),
                mtu: MTU,
                tell_at,
                arrivals: tell_at.is_some(),
            })
        };
        self.server.order(&part(6, None))?;
        self.server.report(&mut [&mut self.back, &mut self.client])?; // connected
        self.client.order(&part(5, Some(6)))?;
        self.client.report(&mut [&mut self.back, &mut self.server])?;
        Ok(())
    }

    /// Waits for the transfer's end, and removes the vifs. Damage is an error.
    pub fn end(&mut self) -> Result<Done> {
        let sent = transferred(self.client.report(&mut [&mut self.back, &mut self.server])?)?;
        let received = transferred(self.server.report(&mut [&mut self.back])?)?;
        for front in [CLIENT, SERVER] {
            self.scene.remove_vif(front, 0)?;
        }
        let switched = match self.back.report(&mut [])? {
            Report::Switch(switched) => switched,
            other => return Err(format!("an answer to another order: {other:?}").into()),
        };
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
    match report {
        Report::Transfer(t) => Ok(*t),
        other => Err(format!("an answer to another order: {other:?}").into()),
    }
}

/// A transfer whose sums were equal.
pub struct Done {
    /// The client's account.
    pub sent: Transferred,
    /// The server's.
    pub received: Transferred,
    /// The account of the back that served its end.
    pub switched: Switched,
}

impl Done {
    /// Octets, time and sum in a line.
    pub fn summary(&self) -> String {
        format!(
            "{} bytes in {:.2} s, {} Gbit/s; sum {:016x} at both ends: equal",
            self.received.bytes,
            self.sent.seconds,
            figure(self.received.bytes as f64 * 8.0 / self.sent.seconds / 1e9),
            self.received.sum
        )
    }

    /// Frames sent and received at both guests' vifs.
    pub fn frames(&self) -> u64 {
        self.sent.frames.iter().chain(&self.received.frames).sum()
    }

    /// Of these through staging buffers.
    pub fn staged(&self) -> u64 {
        self.sent.staged.iter().chain(&self.received.staged).sum()
    }

    /// Frames that came to the back's ports twice, and frames that no guest got although its queue had room.
    ///
    /// A frame comes twice when the back died between the port and the answer; what the port had was in the dead
    /// process's switch, so no guest gets it twice. A frame that came to no port is an error: that must not happen.
    pub fn repeated_and_lost(&self) -> Result<(u64, u64)> {
        let sent = self.sent.frames[0] + self.received.frames[0];
        let got = self.sent.frames[1] + self.received.frames[1];
        let SwitchFrames { seen, overflow, left } = self.switched.frames;
        match (seen.checked_sub(sent), sent.checked_sub(got + overflow + left)) {
            (Some(repeated), Some(lost)) => Ok((repeated, lost)),
            _ => Err(format!(
                "the frames do not add up: guests sent {sent} and got {got}, the ports saw {seen}, dropped {overflow} \
                 and had {left} at the end; answered requests were not served, or frames were made up"
            )
            .into()),
        }
    }
}
