//! The answer to each request.

use super::*;
use MsgType::*;
use pregrant::wire::xs::{Header, PAYLOAD_MAX};

#[test]
fn nodes_by_the_table() {
    let (mut s, mut d, _) = server();
    assert_eq!(d.ask(&mut s, Write, b"/a/b\0v\0w"), ok());
    assert_eq!(d.ask(&mut s, Read, b"/a/b\0"), Ok(b"v\0w".to_vec()));
    assert_eq!(d.ask(&mut s, Read, b"/a\0"), Ok(vec![]));
    assert_eq!(d.ask(&mut s, Read, b"/x\0"), err("ENOENT"));
    assert_eq!(d.ask(&mut s, Mkdir, b"/a/c\0"), ok());
    assert_eq!(d.ask(&mut s, Mkdir, b"/a/c\0"), ok());
    assert_eq!(d.ask(&mut s, Directory, b"/a\0"), Ok(b"b\0c\0".to_vec()));
    assert_eq!(d.ask(&mut s, Directory, b"/a/c\0"), Ok(vec![]));
    assert_eq!(d.ask(&mut s, Rm, b"/a/missing\0"), ok());
    assert_eq!(d.ask(&mut s, Rm, b"/x/missing\0"), err("ENOENT"));
    assert_eq!(d.ask(&mut s, Rm, b"/\0"), err("EINVAL"));
    assert_eq!(d.ask(&mut s, Rm, b"/a\0"), ok());
    assert_eq!(d.ask(&mut s, Read, b"/a/b\0"), err("ENOENT"));
}

#[test]
fn malformed_requests_are_refused() {
    let (mut s, mut d, _) = server();
    for (kind, payload) in [
        (Read, &b""[..]),
        (Read, b"/tool"),
        (Read, b"/tool\0x\0"),
        (Read, b"/tool/\0"),
        (Read, b"//\0"),
        (Read, b"@releaseDomain\0"),
        (Write, b"/a"),
        (Watch, b"/a\0"),
        (Watch, b"/a\0t\0-1\0"),
        (Watch, b"@releaseDomain\0t\x002\0"),
        (Watch, b"@release Domain\0t\0"),
        (SetPerms, b"@nothing\0n0\0"),
        (Introduce, b"0\x000\x000\0"),
        (SetFeature, b"9\x008\0"),
        (SetFeature, b"9\0"),
        (SetFeature, b"32752\x000\0"),
        (GetQuota, b"nodes"),
        (GetQuota, b"memory\0"),
        (GetQuota, b"7\0memory\0"),
        (SetQuota, b"\0"),
        (SetQuota, b"nodes\0-1\0"),
        (SetQuota, b"0\0nodes\x001\0"),
        (SetQuota, b"7\0nodes\x001\x002\0"),
        (Control, b"quota\0set\0memory\x001\0"),
        (SetPerms, b"/tool\0"),
        (SetPerms, b"/tool\0z0\0"),
        (TransactionStart, b"x\0"),
        (TransactionEnd, b"X\0"),
        (GetDomainPath, b"x\0"),
        (GetDomainPath, b"65536\0"),
        (Introduce, b"9\0"),
        (Introduce, b"32752\x000\x000\0"),
        (Release, b"0\0"),
        (SetTarget, b"7\x000\0"),
        (Control, b"dance\0"),
        (DirectoryPart, b"/\0x\0"),
    ] {
        assert_eq!(d.ask(&mut s, kind, payload), err("EINVAL"), "{kind:?} {payload:?}");
    }
    for kind in [WatchEvent, Error] {
        assert_eq!(d.ask(&mut s, kind, b"\0"), err("ENOSYS"));
    }
    for kind in [20, 27, u32::MAX] {
        let mut bytes = vec![];
        codec::encode(&mut bytes, kind, 1, 0, &[b"\0"]);
        s.feed(d.conn, &bytes);
        d.take(&mut s);
        assert_eq!(d.replies.pop(), Some((Error, err("ENOSYS"))));
    }
    assert_eq!(d.ask_in(&mut s, 99, Read, b"/tool\0"), err("ENOENT"));
    assert_eq!(d.ask_in(&mut s, 99, TransactionEnd, b"T\0"), err("ENOENT"));
}

#[test]
fn an_overlong_message_ends_the_connection_after_what_was_answered() {
    let (mut s, mut d, _) = server();
    d.send(&mut s, 0, Read, b"/local/domain/7/domid\0");
    s.feed(
        d.conn,
        &Header { msg_type: 2, len_bytes: PAYLOAD_MAX as u32 + 1, ..Header::default() }.to_bytes(),
    );
    assert!(s.is_ended(d.conn) && !s.wants_input(d.conn));
    d.take(&mut s);
    assert_eq!(d.replies, [(Read, Ok(b"7".to_vec()))]);
    s.disconnect(d.conn);
    assert_eq!(s.pop_ready(), None);
}

#[test]
fn long_directories_come_in_parts() {
    let (mut s, mut d, _) = server();
    for i in 0..600 {
        assert_eq!(d.ask(&mut s, Mkdir, format!("/many/a-long-name-{i}\0").as_bytes()), ok());
    }
    assert_eq!(d.ask(&mut s, Directory, b"/many\0"), err("E2BIG"));
    let part = d.ask(&mut s, DirectoryPart, b"/many\x000\0").unwrap();
    assert!(part.len() > PAYLOAD_MAX - 30 && part.ends_with(b"\0") && !part.ends_with(b"\0\0"));
    // The generation at the start changes with the list.
    let generation = |part: &[u8]| codec::string_and_rest(part).unwrap().0.to_vec();
    assert_eq!(d.ask(&mut s, Write, b"/many/a-long-name-1\0value"), ok());
    assert_eq!(generation(&d.ask(&mut s, DirectoryPart, b"/many\x000\0").unwrap()), generation(&part));
    assert_eq!(d.ask(&mut s, Rm, b"/many/a-long-name-1\0"), ok());
    assert_ne!(generation(&d.ask(&mut s, DirectoryPart, b"/many\x000\0").unwrap()), generation(&part));
}

#[test]
fn permissions_decide() {
    let (mut s, mut d, mut g) = server();
    assert_eq!(g.ask(&mut s, Read, b"domid\0"), Ok(b"7".to_vec()));
    assert_eq!(g.ask(&mut s, Write, b"domid\x008"), err("EACCES"));
    assert_eq!(g.ask(&mut s, Write, b"new\0"), err("EACCES"), "its home is not its own");
    assert_eq!(g.ask(&mut s, Directory, b"/tool\0"), err("EACCES"));
    assert_eq!(
        g.ask(&mut s, Read, b"/tool/nothing\0"),
        err("EACCES"),
        "what is missing there is a secret too"
    );
    assert_eq!(g.ask(&mut s, Read, b"data/nothing\0"), err("ENOENT"));
    assert_eq!(g.ask(&mut s, Rm, b"/local\0"), err("EACCES"));

    assert_eq!(g.ask(&mut s, Write, b"data/x\x001"), ok());
    assert_eq!(g.ask(&mut s, GetPerms, b"data/x\0"), Ok(b"n7\0".to_vec()));
    assert_eq!(g.ask(&mut s, SetPerms, b"data/x\0n7\0r9\0"), ok());
    let mut other = Wire::new(&mut s, 9);
    assert_eq!(other.ask(&mut s, Read, b"/local/domain/7/data/x\0"), Ok(b"1".to_vec()));
    assert_eq!(other.ask(&mut s, Write, b"/local/domain/7/data/x\x002"), err("EACCES"));
    assert_eq!(other.ask(&mut s, SetPerms, b"/local/domain/7/data/x\0n9\0"), err("EACCES"));
    assert_eq!(g.ask(&mut s, SetPerms, b"data/x\0n9\0"), err("EPERM"), "given away, it would use 9's quota");
    assert_eq!(d.ask(&mut s, SetPerms, b"/local/domain/7/data/x\0n9\0"), ok());
    assert_eq!(g.ask(&mut s, Read, b"data/x\0"), err("EACCES"));

    for (kind, payload) in [
        (Introduce, &b"9\x000\x000\0"[..]),
        (Release, b"7\0"),
        (Resume, b"7\0"),
        (SetTarget, b"7\x007\0"),
        (Control, b"help\0"),
        (SetFeature, b"9\x004\0"),
        (GetFeature, b"7\0"),
        (GetQuota, b"\0"),
        (SetQuota, b"nodes\x001\0"),
        (SetPerms, b"@releaseDomain\0r0\0"),
    ] {
        assert_eq!(g.ask(&mut s, kind, payload), err("EACCES"), "{kind:?}");
    }
}

#[test]
fn a_target_lends_its_rights_until_it_is_gone() {
    let (mut s, mut d, _) = server();
    assert_eq!(d.ask(&mut s, Introduce, b"9\x000\x000\0"), ok());
    let mut stub = Wire::new(&mut s, 9);
    let theirs = b"/local/domain/7/data/x\0v";
    assert_eq!(stub.ask(&mut s, Write, theirs), err("EACCES"));
    assert_eq!(d.ask(&mut s, SetTarget, b"9\x007\0"), ok());
    assert_eq!(stub.ask(&mut s, Write, theirs), ok());
    s.release(DomId(7)).unwrap();
    s.introduce(DomId(7)).unwrap();
    assert_eq!(stub.ask(&mut s, Write, theirs), err("EACCES"), "the next domain 7 is another one");
}

#[test]
fn what_a_toolstack_made_before_is_kept() {
    let (mut s, mut d, _) = server();
    assert_eq!(d.ask(&mut s, Write, b"/local/domain/9/name\0nine"), ok());
    assert_eq!(d.ask(&mut s, Write, b"/local/domain/9/data\0x"), ok());
    assert_eq!(d.ask(&mut s, SetPerms, b"/local/domain/9\0n0\0r9\0"), ok());
    assert_eq!(d.ask(&mut s, Introduce, b"9\0-1\x005\0reserved"), ok());
    let mut g = Wire::new(&mut s, 9);
    assert_eq!(g.ask(&mut s, Directory, b"/local/domain/9\0"), Ok(b"data\0domid\0error\0name\0".to_vec()));
    assert_eq!(d.ask(&mut s, Read, b"/local/domain/9/data\0"), Ok(b"x".to_vec()));
    assert_eq!(g.ask(&mut s, Read, b"data\0"), err("EACCES"), "still the toolstack's own");
}

#[test]
fn bytes_after_the_last_nul_are_reserved() {
    let (mut s, mut d, _) = server();
    assert_eq!(d.ask(&mut s, Watch, b"/a\0t\0what?"), ok());
    assert_eq!(d.ask(&mut s, Unwatch, b"/a\0t\0what?"), ok());
    assert_eq!(d.ask(&mut s, Mkdir, b"/a\0"), ok());
    assert_eq!(d.ask(&mut s, SetPerms, b"/a\0n0\0r7\0what?"), ok());
    assert_eq!(d.ask(&mut s, GetPerms, b"/a\0"), Ok(b"n0\0r7\0".to_vec()));
    for payload in [&b"/a\x000"[..], b"/a\x000\0"] {
        assert!(d.ask(&mut s, DirectoryPart, payload).unwrap().ends_with(b"\0\0"));
    }
}

#[test]
fn features_are_set_before_a_domain_is_introduced() {
    let (mut s, mut d, mut g) = server();
    let number = |n: &[u8]| Ok([n, b"\0"].concat());
    assert_eq!(d.ask(&mut s, GetFeature, b"\0"), number(b"4"));
    assert_eq!(g.ask(&mut s, GetFeature, b""), number(b"4"), "of itself anyone may ask");
    assert_eq!(d.ask(&mut s, GetFeature, b"9\0"), err("ENOENT"));
    assert_eq!(d.ask(&mut s, SetFeature, b"7\x000\0"), err("EBUSY"), "it relies on the first answer");
    assert_eq!(d.ask(&mut s, SetFeature, b"9\x000\0"), ok());
    assert_eq!(d.ask(&mut s, GetFeature, b"9\0"), number(b"0"));
    s.introduce(DomId(9)).unwrap();
    let mut old = Wire::new(&mut s, 9);
    assert_eq!(old.ask(&mut s, GetFeature, b"\0"), number(b"0"));
    assert_eq!(old.ask(&mut s, Watch, b"data\0t\x001\0"), err("EINVAL"));
    assert_eq!(g.ask(&mut s, Watch, b"data\0t\x001\0"), ok());
    s.release(DomId(9)).unwrap();
    s.introduce(DomId(9)).unwrap();
    assert_eq!(d.ask(&mut s, GetFeature, b"9\0"), number(b"4"), "the next domain 9 is another one");
}

#[test]
fn quotas_are_the_common_ones_until_they_are_set() {
    let (mut s, mut d, mut g) = server();
    let number = |n: &[u8]| Ok([n, b"\0"].concat());
    let names = b"nodes watches transactions node-size permissions transaction-nodes outstanding";
    assert_eq!(d.ask(&mut s, GetQuota, b"\0"), number(names));
    assert_eq!(d.ask(&mut s, GetQuota, b"nodes\0"), number(b"1000"));
    assert_eq!(d.ask(&mut s, GetQuota, b"0\0nodes\0"), number(b"0"), "domain 0 has none");
    assert_eq!(d.ask(&mut s, GetQuota, b"9\0nodes\0"), err("ENOENT"));
    assert_eq!(d.ask(&mut s, SetQuota, b"9\0nodes\x001\0"), err("ENOENT"));

    assert_eq!(d.ask(&mut s, SetQuota, b"7\0nodes\x003\0"), ok());
    assert_eq!(d.ask(&mut s, SetQuota, b"nodes\x004\0"), ok());
    assert_eq!(d.ask(&mut s, GetQuota, b"7\0nodes\0"), number(b"3"));
    s.introduce(DomId(9)).unwrap();
    assert_eq!(d.ask(&mut s, GetQuota, b"9\0nodes\0"), number(b"4"), "that of all, for new domains");
    // `data` and `error` are two.
    assert_eq!(g.ask(&mut s, Mkdir, b"data/a\0"), ok());
    assert_eq!(g.ask(&mut s, Mkdir, b"data/b\0"), err("ENOSPC"));
    assert_eq!(d.ask(&mut s, SetQuota, b"7\0nodes\x000\0"), ok());
    for i in 0..1200 {
        assert_eq!(g.ask(&mut s, Mkdir, format!("data/{i}\0").as_bytes()), ok());
    }
    assert_eq!(d.ask(&mut s, Control, b"quota\0set\0watches\x009\0"), ok());
    assert!(d.ask(&mut s, Control, b"quota\0").unwrap().starts_with(b"nodes: 4\nwatches: 9\n"));
    assert!(d.ask(&mut s, Control, b"quota\x007\0").unwrap().starts_with(b"nodes: 1203\n"));
}

#[test]
fn nodes_of_a_released_domain_do_not_pile_up() {
    // XSA-419: two guests cooperate, and one is restarted again and again.
    let (mut s, mut d, mut g) = server();
    assert_eq!(g.ask(&mut s, SetPerms, b"data\0b7\0"), ok());
    assert_eq!(d.ask(&mut s, Watch, b"/local/domain/7/data\0t\0"), ok());
    for _ in 0..3 {
        s.introduce(DomId(9)).unwrap();
        let mut other = Wire::new(&mut s, 9);
        assert_eq!(other.ask(&mut s, Write, b"/local/domain/7/data/theirs/below\0v"), ok());
        assert_eq!(g.ask(&mut s, Write, b"data/theirs/mine\0v"), ok());
        d.events(&mut s);
        s.release(DomId(9)).unwrap();
        assert_eq!(d.events(&mut s), ["/local/domain/7/data/theirs t"]);
        assert_eq!(g.ask(&mut s, Directory, b"data\0"), Ok(vec![]));
        assert!(s.counts_are_right());
    }
}

#[test]
fn domains_come_and_go_without_a_trace() {
    let (mut s, mut d, mut g) = server();
    assert_eq!(d.ask(&mut s, IsDomainIntroduced, b"7\0"), Ok(b"T\0".to_vec()));
    assert_eq!(d.ask(&mut s, GetDomainPath, b"7\0"), Ok(b"/local/domain/7\0".to_vec()));
    assert_eq!(d.ask(&mut s, Resume, b"8\0"), err("ENOENT"));
    assert_eq!(d.ask(&mut s, Write, b"/shared\0x"), ok());
    assert_eq!(d.ask(&mut s, SetPerms, b"/shared\0n7\0b7\0r0\0"), ok());
    assert_eq!(d.ask(&mut s, Mkdir, b"/named\0"), ok());
    assert_eq!(d.ask(&mut s, SetPerms, b"/named\0n0\0b7\0r0\0"), ok());
    assert_eq!(g.ask(&mut s, Watch, b"data\0t\0"), ok());
    g.start(&mut s);
    assert_eq!(d.ask(&mut s, Release, b"7\0"), ok());
    assert_eq!(s.usage(DomId(7)), (0, 0, 0));
    assert!(s.is_ended(g.conn));
    assert_eq!(d.ask(&mut s, IsDomainIntroduced, b"7\0"), Ok(b"F\0".to_vec()));
    assert_eq!(d.ask(&mut s, Read, b"/local/domain/7\0"), err("ENOENT"));
    assert_eq!(d.ask(&mut s, Read, b"/shared\0"), err("ENOENT"), "it was its own");
    assert_eq!(d.ask(&mut s, GetPerms, b"/named\0"), Ok(b"n0\0r0\0".to_vec()));
    assert_eq!(d.ask(&mut s, Release, b"7\0"), err("ENOENT"));
    assert_eq!(d.ask(&mut s, Control, b"check\0"), ok());
}
