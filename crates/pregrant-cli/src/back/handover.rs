//! Keeps a guest's frames waiting in its ring while its vif changes hands between a driver of the
//! kernel, netback or the module of linux/back, and this process.
//!
//! ```text
//!   take:       hold, wait 100 ms | unbind: the interface goes, and answers that are under way to the guest with it
//!   give back:  hold              | bind: the kernel reads the ring before the bridge forwards | let go
//! ```
//! Both watch the vif's key `rate`, the toolstack's limit: a rate of
//! next to nothing stops them from reading the guest's ring (docs/protocol 6, Credit, is the same
//! limit at our end). The key is put back as it was. If this process is killed in between, the
//! toolstack's setting is kept in [`KEPT`], and the next backend that finds the vif puts it back.
//!
//! What a guest may do: nothing; its own directory has no such key.

use pregrant::net::back::vif::RATE;
use pregrant::xenbus::{Device, DeviceError, KeyError};
use pregrant::xenstore::{Client, Transport};
use std::time::Duration;

/// The rate that holds back a guest's frames: one byte in a hundred seconds.
const HELD: &str = "1,100000000";
/// The key under which the toolstack's rate is kept while the handover changes `rate`; its value
/// begins with [`VERSION`]. An empty rate in it means that there was none.
const KEPT: &str = "pregrant-rate";
/// The version of the key's value. A value without a version consists of the rate alone.
const VERSION: &str = "v1:";
const EXPECTED: &str = "`v1:` and the toolstack's `rate`, as this program keeps it while a vif changes hands; start \
    the version of pregrant that wrote it, or write the vif's `rate` by hand and remove this key";
/// Time within which most frames between the guest and a near host are answered.
const ON_THE_WAY: Duration = Duration::from_millis(100);

/// A vif that moves between the kernel and this process. The frames of its guest are held back
/// until [`let_go`](Self::let_go).
#[derive(Debug)]
pub struct Handover {
    device: Device,
    before: String,
}

impl Handover {
    /// Makes netback stop reading the guest's ring, which takes effect after a moment.
    ///
    /// # Errors
    /// The vif is gone.
    pub fn begin<T: Transport>(device: Device, xs: &mut Client<T>) -> Result<Self, DeviceError> {
        if let Some(left) = Self::left(device.clone(), xs)? {
            return Ok(left);
        }
        let before = device.get_own::<String, T>(xs, RATE)?.unwrap_or_default();
        device.set_in_transaction(xs, &[(KEPT, &format!("{VERSION}{before}")), (RATE, HELD)])?;
        Ok(Self { device, before })
    }

    /// Returns the handover of a process that was killed during it, if there is one.
    ///
    /// # Errors
    /// xenstore cannot be read, or the key that the process left is of another version.
    pub fn left<T: Transport>(device: Device, xs: &mut Client<T>) -> Result<Option<Self>, DeviceError> {
        let rate = device.get_own::<String, T>(xs, RATE)?;
        if rate.as_deref() != Some(HELD) {
            return Ok(None);
        }
        let kept = device.get_own::<String, T>(xs, KEPT)?.unwrap_or_default();
        let before = match kept.strip_prefix(VERSION) {
            Some(before) => before.to_owned(),
            None if kept.starts_with('v') => {
                let path = format!("{}/{KEPT}", device.own_dir());
                let of = device.id().back;
                return Err(KeyError::new(&path, Some(kept.as_bytes()), EXPECTED, of).into());
            }
            None => kept,
        };
        Ok(Some(Self { device, before }))
    }

    /// Waits for as long as netback may need to answer the requests that it has read.
    pub fn drain(&self) {
        std::thread::sleep(ON_THE_WAY);
    }

    /// Ends the handover, so that the next backend reads the guest's frames again.
    ///
    /// # Errors
    /// The vif is gone.
    pub fn let_go<T: Transport>(self, xs: &mut Client<T>) -> Result<(), DeviceError> {
        if self.before.is_empty() {
            self.device.unset(xs, RATE)?;
        } else {
            self.device.set_in_transaction(xs, &[(RATE, &self.before)])?;
        }
        self.device.unset(xs, KEPT)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::DomId;
    use pregrant::net::back::Rate;
    use pregrant::xenbus::{Class, DeviceId, Side};
    use pregrant_host::UnixTransport;
    use pregrant_loopback::xenstored::Xenstored;

    /// The module of linux/back knows a vif that is held by the same rate.
    #[test]
    fn the_rate_that_holds_frames_is_the_cores() {
        assert_eq!(Rate::parse(HELD), Ok(Some(Rate::HELD)));
    }

    #[test]
    fn the_toolstacks_rate_is_put_back_also_after_a_death() {
        let socket = std::env::temp_dir().join(format!("pregrant-hold-{}.sock", std::process::id()));
        let mut server = Xenstored::new().unwrap();
        server.listen_unix(&socket).unwrap();
        let handle = server.handle();
        let serving = std::thread::spawn(move || server.run(None).unwrap());
        let mut xs = Client::new(UnixTransport::connect(&socket).unwrap());
        let id = DeviceId { class: Class::VIF, front: DomId(5), back: DomId(0), handle: 0 };
        let device = || Device::new(id, Side::Back);
        assert!(Handover::begin(device(), &mut xs).is_err(), "there is no such vif");
        xs.write(device().own_dir(), "").unwrap();
        let now = |xs: &mut Client<UnixTransport>| {
            let text = |key: String, xs: &mut Client<UnixTransport>| {
                xs.read_if_there(&key).unwrap().map(|text| String::from_utf8(text).unwrap())
            };
            (
                text(format!("{}/{RATE}", device().own_dir()), xs),
                text(format!("{}/{KEPT}", device().own_dir()), xs),
            )
        };
        for rate in [None, Some("1000,50000".to_string())] {
            if let Some(rate) = &rate {
                xs.write(&format!("{}/{RATE}", device().own_dir()), rate).unwrap();
            }
            assert!(Handover::left(device(), &mut xs).unwrap().is_none());
            let hold = Handover::begin(device(), &mut xs).unwrap();
            let kept = format!("v1:{}", rate.clone().unwrap_or_default());
            assert_eq!(now(&mut xs), (Some(HELD.into()), Some(kept)));
            hold.let_go(&mut xs).unwrap();
            assert_eq!(now(&mut xs), (rate.clone(), None));

            // One that is killed; the next one holds it too, or only lets go.
            for again in [true, false] {
                drop(Handover::begin(device(), &mut xs).unwrap());
                let left = if again { Some(Handover::begin(device(), &mut xs).unwrap()) } else { None };
                left.or_else(|| Handover::left(device(), &mut xs).unwrap()).unwrap().let_go(&mut xs).unwrap();
                assert_eq!(now(&mut xs), (rate.clone(), None));
            }
            // Of a program without versions, and of one that is newer.
            drop(Handover::begin(device(), &mut xs).unwrap());
            let key = format!("{}/{KEPT}", device().own_dir());
            xs.write(&key, rate.as_deref().unwrap_or_default()).unwrap();
            Handover::left(device(), &mut xs).unwrap().unwrap().let_go(&mut xs).unwrap();
            assert_eq!(now(&mut xs), (rate.clone(), None));
            drop(Handover::begin(device(), &mut xs).unwrap());
            xs.write(&key, "v2:1000,50000;5").unwrap();
            for left in [Handover::left(device(), &mut xs), Handover::begin(device(), &mut xs).map(Some)] {
                let why = left.unwrap_err().to_string();
                assert!(why.contains("pregrant-rate") && why.contains("v2:1000"), "{why}");
                assert!(why.contains("start the version of pregrant that wrote it"), "{why}");
            }
            assert_eq!(now(&mut xs).0.as_deref(), Some(HELD), "it is left as it is");
            xs.write(&key, "").unwrap();
            Handover::left(device(), &mut xs).unwrap().unwrap().let_go(&mut xs).unwrap();
            if let Some(rate) = &rate {
                xs.write(&format!("{}/{RATE}", device().own_dir()), rate).unwrap();
            }
        }
        handle.stop().unwrap();
        serving.join().unwrap();
        let _ = std::fs::remove_file(&socket);
    }
}
