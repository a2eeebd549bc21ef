//! Tests the switch by itself: which port receives a frame, and which source addresses a port may
//! send with.

use super::vif::flow_hash;
use super::*;
use pregrant::net::checksum;
use pregrant::net::headers::MacAddr;
use pregrant::port::Offload;

const NONE: Offload = Offload { csum_blank: false, csum_ok: false, gso_type: 0, gso_size: 0 };
const ALL: Offloads = Offloads { csum: true, gso: true };

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

fn frame(dst: MacAddr, src: MacAddr) -> Vec<u8> {
    let mut f = vec![0u8; 60];
    f[..6].copy_from_slice(&dst.0);
    f[6..12].copy_from_slice(&src.0);
    f[12..14].copy_from_slice(&[0x88, 0xB5]);
    f
}

fn send(port: &mut SwitchPort, frame: &[u8], offload: Offload) {
    let mut arena = Arena::new();
    assert!(arena.push(frame, offload));
    assert_eq!(port.tx_burst(&arena.burst()), 1);
}

fn received(port: &mut SwitchPort) -> Vec<(Vec<u8>, Offload)> {
    let mut arena = Arena::new();
    let n = port.rx_burst(&mut arena);
    let got: Vec<_> = arena.burst().iter().map(|(f, o)| (f.to_vec(), o)).collect();
    assert_eq!(got.len(), n);
    got
}

fn three() -> (Switch, Vec<SwitchPort>) {
    let switch = Switch::new();
    let ports = (0..3).map(|_| switch.add_port(ALL).unwrap()).collect();
    (switch, ports)
}

#[test]
fn unknown_floods_known_does_not_and_nothing_returns() {
    let (_switch, mut p) = three();
    send(&mut p[0], &frame(mac(2), mac(1)), NONE);
    let counts = |p: &mut Vec<SwitchPort>| p.iter_mut().map(|p| received(p).len()).collect::<Vec<_>>();
    assert_eq!(counts(&mut p), [0, 1, 1]);
    send(&mut p[1], &frame(mac(1), mac(2)), NONE);
    assert_eq!(counts(&mut p), [1, 0, 0]);
    send(&mut p[0], &frame(mac(2), mac(1)), NONE);
    assert_eq!(counts(&mut p), [0, 1, 0]);
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    send(&mut p[0], &frame(MacAddr([1, 0, 0x5E, 0, 0, 9]), mac(1)), NONE);
    assert_eq!(counts(&mut p), [0, 2, 2]);
    // To a station behind the sending port: dropped, it has the frame already.
    send(&mut p[0], &frame(mac(1), mac(7)), NONE);
    assert_eq!(counts(&mut p), [0, 0, 0]);
    assert_eq!(p[0].stats().tx_frames, 5);
}

#[test]
fn frames_that_no_port_is_there_for_are_counted() {
    let switch = Switch::new();
    let mut first = switch.add_port(ALL).unwrap();
    let [unknown, group] = [frame(mac(2), mac(1)), frame(MacAddr::BROADCAST, mac(1))];
    send(&mut first, &unknown, NONE);
    send(&mut first, &group, NONE);
    // To the sender itself: that is no loss.
    send(&mut first, &frame(mac(1), mac(1)), NONE);
    let counted = |port: &SwitchPort| (port.stats().no_port, port.stats().flooded);
    assert_eq!(counted(&first), (2, 0));
    let mut second = switch.add_port(ALL).unwrap();
    send(&mut first, &unknown, NONE);
    assert_eq!((counted(&first), received(&mut second).len()), ((2, 1), 1));
    second.set_sources(Sources::Own(mac(2)));
    drop(second);
    send(&mut first, &unknown, NONE);
    assert_eq!(counted(&first), (3, 1));
    let drops = first.drop_counts().unwrap().read();
    assert!(drops.contains(&PortDrop { dir: "tx", reason: "no_port", frames: 3 }), "{drops:?}");
}

#[test]
fn a_station_moves_where_it_may_and_ages() {
    let (switch, mut p) = three();
    p[1].set_sources(Sources::Any(None));
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    send(&mut p[1], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    p.iter_mut().for_each(|p| drop(received(p)));
    send(&mut p[2], &frame(mac(1), mac(3)), NONE);
    assert_eq!((received(&mut p[0]).len(), received(&mut p[1]).len()), (0, 1));
    switch.set_now(super::super::mac_table::AGE_NS + 1);
    assert_eq!(switch.known_addresses(), 0);
    send(&mut p[2], &frame(mac(1), mac(3)), NONE);
    assert_eq!((received(&mut p[0]).len(), received(&mut p[1]).len()), (1, 1));
}

/// Sends a frame from another port with the source address `mac(1)`. Returns true if frames to this
/// address still go only to the first port.
fn keeps_its_traffic(p: &mut [SwitchPort], attacker: usize, stranger: usize) -> bool {
    send(&mut p[attacker], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    let nr_received: usize = p.iter_mut().map(|p| received(p).len()).sum();
    send(&mut p[stranger], &frame(mac(1), mac(3)), NONE);
    let got: Vec<usize> = p.iter_mut().map(|p| received(p).len()).collect();
    nr_received == 0 && got == [1, 0, 0]
}

#[test]
fn a_forged_source_does_not_take_a_pinned_address() {
    for attacker in [Sources::Learnt, Sources::Own(mac(2)), Sources::Any(None), Sources::Any(Some(mac(2)))] {
        let (_switch, mut p) = three();
        // Learnt before its own vif exists.
        send(&mut p[1], &frame(MacAddr::BROADCAST, mac(1)), NONE);
        p.iter_mut().for_each(|p| drop(received(p)));
        p[0].set_sources(Sources::Own(mac(1)));
        p[1].set_sources(attacker);
        assert!(keeps_its_traffic(&mut p, 1, 2), "{attacker:?}");
        assert_eq!((p[1].stats().forged, p[0].stats().forged), (1, 0));
        let dropped = p[1].drops().into_iter().find(|d| d.reason == "forged_source");
        assert_eq!(dropped.map(|d| (d.dir, d.frames)), Some(("tx", 1)));
    }
}

#[test]
fn a_guest_with_an_address_sends_with_no_other_unless_it_may() {
    let (switch, mut p) = three();
    p[0].set_sources(Sources::Own(mac(1)));
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(7)), NONE);
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    assert_eq!((received(&mut p[1]).len(), p[0].stats().forged, switch.known_addresses()), (2, 1, 1));
    p[0].set_sources(Sources::Any(Some(mac(1))));
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(7)), NONE);
    assert_eq!((received(&mut p[1]).len(), p[0].stats().forged, switch.known_addresses()), (1, 1, 2));
}

#[test]
fn a_learnt_address_is_not_taken_by_a_frame() {
    let (switch, mut p) = three();
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    p.iter_mut().for_each(|p| drop(received(p)));
    assert!(keeps_its_traffic(&mut p, 1, 2));
    assert_eq!(p[1].stats().forged, 1);
    // Once its port is gone, or it has aged, the address is free.
    switch.set_now(super::super::mac_table::AGE_NS + 1);
    send(&mut p[1], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    assert_eq!((p[1].stats().forged, p[0].stats().forged), (1, 1));
    drop(p.remove(1));
    send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
    assert_eq!(p[0].stats().forged, 1);
}

/// A guest that is migrated within its host has two vifs with one address for a while.
#[test]
fn of_two_vifs_with_one_address_the_later_has_it_while_it_is_there() {
    let (_switch, mut p) = three();
    for port in &p[..2] {
        port.set_sources(Sources::Own(mac(1)));
    }
    let to_it = frame(mac(1), mac(3));
    send(&mut p[2], &to_it, NONE);
    assert_eq!((received(&mut p[0]).len(), received(&mut p[1]).len()), (0, 1));
    drop(p.remove(1));
    send(&mut p[1], &to_it, NONE);
    assert_eq!(received(&mut p[0]).len(), 1);
}

#[test]
fn bad_frames_go_nowhere() {
    let (switch, mut p) = three();
    send(&mut p[0], &frame(mac(2), MacAddr([3, 0, 0, 0, 0, 1])), NONE);
    send(&mut p[0], &frame(mac(2), MacAddr([0; 6])), NONE);
    send(&mut p[0], &[1, 2, 3], NONE);
    assert_eq!(p[0].stats().bad_frames, 3);
    assert_eq!((received(&mut p[1]).len(), switch.known_addresses()), (0, 0));
}

#[test]
fn a_slow_guest_loses_frames_and_others_do_not() {
    let (_switch, mut p) = three();
    let mut sent = 0u64;
    let big = {
        let mut f = frame(MacAddr::BROADCAST, mac(1));
        f.resize(1500, 0);
        f
    };
    let mut got = 0;
    while p[1].stats().rx_overflow == 0 {
        send(&mut p[0], &big, NONE);
        sent += 1;
        got += received(&mut p[2]).len() as u64;
    }
    assert_eq!(got, sent);
    assert_eq!(p[2].stats().rx_overflow, 0);
    assert_eq!(p[1].stats().rx_frames, sent - 1);
    assert!(sent as usize * 1500 > QUEUE_BYTES / 2 && sent as usize * 1500 < QUEUE_BYTES * 2);
}

#[test]
fn a_port_that_leaves_takes_its_addresses_along() {
    let (switch, mut p) = three();
    send(&mut p[2], &frame(MacAddr::BROADCAST, mac(3)), NONE);
    assert_eq!(switch.known_addresses(), 1);
    drop(p.pop());
    assert_eq!(switch.known_addresses(), 0);
    let again = switch.add_port(ALL).unwrap();
    assert_eq!(again.port, 2);
    assert!(!again.has_frames());
}

#[test]
fn the_number_of_ports_is_bounded() {
    let switch = Switch::new();
    let held: Vec<_> = (0..MAX_PORTS).map(|_| switch.add_port(ALL).unwrap()).collect();
    assert_eq!(switch.add_port(ALL).err(), Some(SwitchFull));
    drop(held);
    assert!(switch.add_port(ALL).is_ok());
}

/// A UDP datagram with a finished checksum, and a TCP segment of 3000 bytes.
fn ip_frame(protocol: u8, l4: &[u8]) -> Vec<u8> {
    let mut f = frame(MacAddr::BROADCAST, mac(1));
    f.truncate(12);
    f.extend([0x08, 0, 0x45, 0]);
    f.extend((20 + l4.len() as u16).to_be_bytes());
    f.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f.extend(l4);
    checksum::fill(&mut f).unwrap();
    f
}

#[test]
fn unfinished_work_is_kept_or_done_as_the_receiver_can() {
    let switch = Switch::new();
    let mut from = switch.add_port(ALL).unwrap();
    let mut able = switch.add_port(ALL).unwrap();
    let mut plain = switch.add_port(Offloads::default()).unwrap();

    let finished = ip_frame(17, &[0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4]);
    let mut blank = finished.clone();
    checksum::make_blank(&mut blank).unwrap();
    let offload = Offload { csum_blank: true, csum_ok: true, ..NONE };
    send(&mut from, &blank, offload);
    assert_eq!(received(&mut able), [(blank, offload)]);
    assert_eq!(received(&mut plain), [(finished, Offload { csum_ok: true, ..NONE })]);

    let large = large(mac(9), 3000);
    send(&mut from, &large, gso(1000));
    assert_eq!(received(&mut able), [(large, gso(1000))]);
    let cut = received(&mut plain);
    assert_eq!(cut.iter().map(|(f, _)| f.len()).collect::<Vec<_>>(), [1054; 3]);
    assert!(cut.iter().all(|(f, o)| checksum::verify(f).unwrap() && o.gso_type == 0));

    // Not a packet whose checksum could be completed.
    send(&mut from, &frame(MacAddr::BROADCAST, mac(1)), Offload { csum_blank: true, ..NONE });
    assert_eq!((received(&mut able).len(), received(&mut plain).len()), (1, 0));
    assert_eq!(plain.stats().rx_unfinishable, 1);
}

/// A TCP packet with this much payload and a blank checksum.
fn large(dst: MacAddr, payload: usize) -> Vec<u8> {
    let mut tcp = vec![0u8; 20 + payload];
    tcp[12] = 0x50;
    let mut f = ip_frame(6, &tcp);
    f[..6].copy_from_slice(&dst.0);
    checksum::make_blank(&mut f).unwrap();
    f
}

fn gso(gso_size: u16) -> Offload {
    Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size }
}

#[test]
fn large_segments_do_not_go_to_groups() {
    let (_switch, mut p) = three();
    for group in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5E, 0, 0, 9])] {
        send(&mut p[0], &large(group, 3000), gso(1000));
    }
    assert_eq!((received(&mut p[1]).len(), received(&mut p[2]).len()), (0, 0));
    assert_eq!(p[0].stats().gso_to_group, 2);
}

/// If two of a frame's receivers need it segmented, it is segmented only once, and later frames
/// stay behind it.
#[test]
fn a_large_segment_is_cut_in_its_sender_s_memory_and_keeps_its_place() {
    let switch = Switch::new();
    let mut from = switch.add_port(ALL).unwrap();
    let mut able = switch.add_port(ALL).unwrap();
    let mut plain: Vec<SwitchPort> = (0..2).map(|_| switch.add_port(Offloads::default()).unwrap()).collect();
    let (big, small) = (large(mac(9), 3000), frame(mac(9), mac(1)));
    let mut arena = Arena::new();
    for (bytes, offload) in [(&small, NONE), (&big, gso(1000)), (&small, NONE), (&big, gso(1500))] {
        assert!(arena.push(bytes, offload));
    }
    // One whose headers do not allow it, and one with next to no payload per segment.
    assert!(arena.push(&frame(mac(9), mac(1)), gso(1000)));
    assert!(arena.push(&big, gso(8)));
    assert!(arena.push(&small, NONE));
    assert_eq!(from.tx_burst(&arena.burst()), 7);
    let lens = |p: &mut SwitchPort| received(p).iter().map(|(f, _)| f.len()).collect::<Vec<_>>();
    assert_eq!(lens(&mut able), [60, big.len(), 60, big.len(), 60, big.len(), 60]);
    for p in &mut plain {
        assert_eq!(lens(p), [60, 1054, 1054, 1054, 60, 1554, 1554, 60]);
        assert_eq!((p.stats().rx_unfinishable, p.stats().rx_frames), (2, 8));
    }
    let cut: Vec<usize> = from.cut.iter().map(<[u8]>::len).collect();
    assert_eq!(cut, [0; 0], "the last one was refused");
    assert_eq!(from.stats().tx_frames, 7);
}

#[test]
fn segments_that_find_no_room_are_counted() {
    let switch = Switch::new();
    let mut from = switch.add_port(ALL).unwrap();
    let mut plain = switch.add_port(Offloads::default()).unwrap();
    let mut sent = 0;
    while plain.stats().rx_overflow == 0 {
        send(&mut from, &large(mac(9), 60_000), gso(1000));
        sent += 60;
    }
    let stats = plain.stats();
    assert_eq!(stats.rx_frames + stats.rx_overflow, sent);
    let mut got = 0;
    while let n @ 1.. = received(&mut plain).len() as u64 {
        got += n;
    }
    assert_eq!(got, stats.rx_frames);
}

#[test]
fn queues_of_one_vif_share_its_frames_by_flow() {
    let switch = Switch::new();
    let mut from = switch.add_port(ALL).unwrap();
    let mut queues = switch.add_multi_queue_port(2, ALL).unwrap();
    // A broadcast from one of its queues does not reach the other.
    send(&mut queues[0], &frame(MacAddr::BROADCAST, mac(9)), NONE);
    assert_eq!(received(&mut queues[1]).len(), 0);
    let mut seen = [0; 2];
    for port in 0..64u8 {
        let flow = ip_frame(17, &[0, port, 0, 2, 0, 8, 0, 0]);
        send(&mut from, &flow, NONE);
        send(&mut from, &flow, NONE);
        let got = [received(&mut queues[0]).len(), received(&mut queues[1]).len()];
        assert!(got == [2, 0] || got == [0, 2], "flow {port} was spread: {got:?}");
        seen[0] += got[0];
        seen[1] += got[1];
    }
    assert!(seen[0] > 16 && seen[1] > 16, "{seen:?}");
    drop(queues.pop());
    assert_eq!(switch.known_addresses(), 2, "the port lives while one of its queues does");
}

/// Steers each flow to the queue of its port number: 9 queues, although only 2 exist.
#[derive(Debug)]
struct ByPort;

impl Steering for ByPort {
    fn queue_of(&self, frame: &[u8]) -> usize {
        usize::from(frame[35] % 9)
    }
}

#[test]
fn a_guest_says_which_queue() {
    let switch = Switch::new();
    let mut from = switch.add_port(ALL).unwrap();
    let mut queues = switch.add_multi_queue_port(2, ALL).unwrap();
    queues.iter_mut().for_each(|q| q.steer(Some(Arc::new(ByPort))));
    for port in 0..9u8 {
        send(&mut from, &ip_frame(17, &[0, port, 0, 2, 0, 8, 0, 0]), NONE);
        let got = [received(&mut queues[0]).len(), received(&mut queues[1]).len()];
        assert_eq!(got, if port % 2 == 0 { [1, 0] } else { [0, 1] }, "flow {port}");
    }
    queues.iter_mut().for_each(|q| q.steer(None));
    let flow = ip_frame(17, &[0, 1, 0, 2, 0, 8, 0, 0]);
    send(&mut from, &flow, NONE);
    assert_eq!(received(&mut queues[flow_hash(&flow) as usize % 2]).len(), 1);
}
