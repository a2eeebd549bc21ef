//! Reads a device's keys in xenstore as they are shown: the owner of the device, and the features
//! of its peer.

use super::Result;
use super::finding::plain;
use pregrant::DomId;
use pregrant::xenbus::Device;
use pregrant::xenstore::{Client, Transport};

/// Returns a guest's name in brackets. It is empty if this domain may not read the name, and "gone"
/// if xenstore does not know the domain.
pub fn who<T: Transport>(xs: &mut Client<T>, guest: DomId) -> String {
    match xs.read(&format!("/local/domain/{}/name", guest.0)) {
        Ok(name) if !name.is_empty() => format!(" ({})", plain(&name)),
        // A xenstored that does not say is no reason to call it gone.
        _ if xs.is_domain_introduced(guest).is_ok_and(|is_there| !is_there) => " (gone)".into(),
        _ => String::new(),
    }
}

/// A key of the peer that announces a feature.
#[derive(Clone, Copy, Debug)]
pub struct Ability {
    pub key: &'static str,
    /// The meaning of the key, in a few words.
    pub words: &'static str,
    pub says: Says,
}

/// The rule by which the value of a key announces a feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    Flag,
    Not,
    /// The value itself, which is a number or a name.
    Value,
    /// The key exists, with any value, or exists in the directory of each queue if there are
    /// several.
    There,
}

impl Ability {
    /// Describes a key that is 1 if its end has the ability.
    pub const fn flag(key: &'static str, words: &'static str) -> Self {
        Self { key, words, says: Says::Flag }
    }

    /// Describes a key that is 1 if its end lacks the ability.
    pub const fn not(key: &'static str, words: &'static str) -> Self {
        Self { key, words, says: Says::Not }
    }

    /// Describes a key whose value is shown.
    pub const fn value(key: &'static str, words: &'static str) -> Self {
        Self { key, words, says: Says::Value }
    }

    /// Describes a key whose presence announces the feature.
    pub const fn there(key: &'static str, words: &'static str) -> Self {
        Self { key, words, says: Says::There }
    }
}

/// Describes the peer's abilities, by key, and those that it lacks, with an explanation.
pub fn abilities<T: Transport>(xs: &mut Client<T>, device: &Device, all: &[Ability]) -> Result<String> {
    let (mut has, mut lacks) = (Vec::new(), Vec::new());
    for Ability { key, words, says } in all {
        let mut value: Option<String> = device.get(xs, key)?;
        if value.is_none() && *says == Says::There {
            value = device.get(xs, &format!("queue-0/{key}"))?;
        }
        let set = value.as_deref().is_some_and(|v| !["", "0"].contains(&v.trim_end_matches('\0').trim()));
        // Such a key matters by its value, not by its presence.
        let shown = match (says, &value) {
            (Says::Not, _) => format!("={}", u8::from(set)),
            (Says::Value, Some(value)) if set => format!("={}", plain(value.as_bytes())),
            _ => String::new(),
        };
        if set == (*says != Says::Not) {
            has.push(format!("{key}{shown}"));
        } else {
            lacks.push(format!("{key}{shown} ({words})"));
        }
    }
    let list = |lines: Vec<String>| if lines.is_empty() { "nothing".into() } else { lines.join(", ") };
    Ok(format!("has {}; not {}", list(has), list(lacks)))
}

/// Reads these keys of the peer; a key that does not exist is None.
pub fn keys<T: Transport>(
    xs: &mut Client<T>,
    device: &Device,
    names: &[&str],
) -> Result<Vec<Option<String>>> {
    let read = |name: &&str| Ok(device.get::<String, T>(xs, name)?);
    names.iter().map(read).collect()
}

/// Returns the names in a directory; the list is empty if there is no such directory.
pub fn names<T: Transport>(xs: &mut Client<T>, path: &str) -> Result<Vec<String>> {
    match xs.directory(path) {
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::xenbus::Side;
    use pregrant::xenbus::toolstack::Vif;
    use pregrant_xenstored::LocalStore;

    /// Examples of a front's keys.
    const FRONT_KEYS: [Ability; 5] = [
        Ability::flag("feature-sg", "frames over several pages"),
        Ability::flag("feature-gso-tcpv4", "uncut TCP over IPv4"),
        Ability::not("feature-no-csum-offload", "blank checksums over IPv4"),
        Ability::value("multi-queue-num-queues", "queues"),
        Ability::there("data-ring-index-ref", "a data ring"),
    ];

    #[test]
    fn features_stand_under_their_own_names() {
        let store = LocalStore::new();
        store.with_server(|s| s.introduce(DomId(5))).unwrap();
        let mut xs = store.client(DomId(0));
        let vif = Vif::new(DomId(5), DomId(0), 0, [2, 0, 0, 0, 0, 5]);
        vif.create(&mut xs).unwrap();
        let device = Device::new(vif.id, Side::Back);
        let mut says = |no_csum: &str| {
            for (key, value) in [
                ("feature-sg", "1"),
                ("feature-gso-tcpv4", "0"),
                ("feature-no-csum-offload", no_csum),
                ("multi-queue-num-queues", "2"),
                ("queue-0/data-ring-index-ref", "7"),
            ] {
                xs.write(&format!("{}/{key}", device.peer_dir()), value).unwrap();
            }
            let text = abilities(&mut xs, &device, &FRONT_KEYS).unwrap();
            let (has, lacks) = text.split_once("; not ").unwrap();
            (has.to_string(), lacks.to_string())
        };
        let (has, lacks) = says("0");
        assert_eq!(
            has,
            "has feature-sg, feature-no-csum-offload=0, multi-queue-num-queues=2, data-ring-index-ref"
        );
        assert_eq!(lacks, "feature-gso-tcpv4 (uncut TCP over IPv4)");
        let (has, lacks) = says("1");
        assert!(has.starts_with("has feature-sg, multi-queue-num-queues=2"), "{has}");
        assert!(lacks.contains("feature-no-csum-offload=1 (blank checksums over IPv4)"), "{lacks}");
    }
}

/// Helpers for tests that the tables of vifs and of vbds are complete.
#[cfg(test)]
pub mod complete {
    use super::Ability;
    use pregrant::xenbus::key_source::Pairs;

    /// Keys that announce no feature, since they are addresses of one connection, or belong to the
    /// handshake itself.
    const ADDRESSES: [&str; 10] = [
        "tx-ring-",
        "rx-ring-",
        "ring-",
        "event-channel",
        "tx-data-",
        "rx-data-",
        "request-rx-copy",
        "feature-rx-copy",
        "feature-rx-flip",
        "protocol",
    ];

    /// Panics if a key that the code writes (`written`) is not in the table.
    pub fn check(table: &[Ability], written: &[Pairs]) {
        let mut known = 0;
        for (key, _) in written.iter().flatten() {
            let name = key
                .split_once('/')
                .filter(|(dir, _)| dir.starts_with("queue-"))
                .map_or(&**key, |(_, name)| name);
            if ADDRESSES.iter().any(|address| name.starts_with(address)) {
                continue;
            }
            assert!(table.iter().any(|ability| ability.key == name), "doctor's table does not know {key}");
            known += 1;
        }
        assert!(known >= table.len().min(2), "{known}");
        for ability in table {
            let is_written = |(key, _): &(String, String)| key.rsplit('/').next() == Some(ability.key);
            assert!(written.iter().flatten().any(is_written), "no end writes {}", ability.key);
        }
    }
}
