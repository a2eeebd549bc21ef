//! What xenstore has of a device, as it is shown: whose it is, and what its peer says that it can.

use super::Result;
use super::finding::plain;
use pregrant::DomId;
use pregrant::xenbus::Device;
use pregrant::xenstore::{Client, Transport};

/// A guest's name, in brackets; nothing where it has none that this domain may read; "gone" where xenstore knows no such
/// domain.
pub fn who<T: Transport>(xs: &mut Client<T>, guest: DomId) -> String {
    match xs.read(&format!("/local/domain/{}/name", guest.0)) {
        Ok(name) if !name.is_empty() => format!(" ({})", plain(&name)),
        // A xenstored that does not say is no reason to call it gone.
        _ if xs.is_domain_introduced(guest).is_ok_and(|is_there| !is_there) => " (gone)".into(),
        _ => String::new(),
    }
}

/// What the peer has of these, and what not: by the keys' own names, with plain words behind.
pub fn abilities<T: Transport>(xs: &mut Client<T>, device: &Device, all: &[(&str, &str)]) -> Result<String> {
    let (mut has, mut lacks) = (Vec::new(), Vec::new());
    for (key, words) in all {
        let (name, wanted) = key.strip_prefix('!').map_or((*key, true), |name| (name, false));
        let value: Option<String> = device.get(xs, name)?;
        let there = value.is_some_and(|v| v.trim() != "0");
        // Such a key is read by what stands in it, not by its being there.
        let says = match (wanted, there) {
            (true, _) => String::new(),
            (false, there) => format!("={}", u8::from(there)),
        };
        let line = format!("{name}{says} ({words})");
        if there == wanted { has.push(line) } else { lacks.push(line) }
    }
    let list = |lines: Vec<String>| if lines.is_empty() { "nothing".into() } else { lines.join(", ") };
    Ok(format!("has {}; not {}", list(has), list(lacks)))
}

/// Some of the peer's keys.
pub fn keys<T: Transport>(
    xs: &mut Client<T>,
    device: &Device,
    names: &[&str],
) -> Result<Vec<Option<String>>> {
    let read = |name: &&str| Ok(device.get::<String, T>(xs, name)?);
    names.iter().map(read).collect()
}

/// The names in a directory; none when it is not there.
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

    /// Some of what a front may have.
    const FRONT_KEYS: [(&str, &str); 3] = [
        ("feature-sg", "frames over several pages"),
        ("feature-gso-tcpv4", "uncut TCP over IPv4"),
        ("!feature-no-csum-offload", "blank checksums over IPv4"),
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
            for (key, value) in
                [("feature-sg", "1"), ("feature-gso-tcpv4", "0"), ("feature-no-csum-offload", no_csum)]
            {
                xs.write(&format!("{}/{key}", device.peer_dir()), value).unwrap();
            }
            let text = abilities(&mut xs, &device, &FRONT_KEYS).unwrap();
            let (has, lacks) = text.split_once("; not ").unwrap();
            (has.to_string(), lacks.to_string())
        };
        let (has, lacks) = says("0");
        assert_eq!(
            has,
            "has feature-sg (frames over several pages), feature-no-csum-offload=0 (blank checksums over IPv4)"
        );
        assert_eq!(lacks, "feature-gso-tcpv4 (uncut TCP over IPv4)");
        let (has, lacks) = says("1");
        assert_eq!(has, "has feature-sg (frames over several pages)");
        assert!(lacks.contains("feature-no-csum-offload=1 (blank checksums over IPv4)"), "{lacks}");
    }
}
