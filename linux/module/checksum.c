// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Offloads in both drivers: which skbs that are sent have those that a netif slot can express
 * (ndo_features_check), and what a peer may say of a large segment that it sends.
 */
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <net/ip.h>
#include <net/ipv6.h>

#include "driver.h"

/*
 * Whether a partial checksum is that of the outermost TCP or UDP header, behind an untagged
 * Ethernet header. The netif flag has no offset, and the peer looks there (docs/protocol 2.7).
 * The stack knows its own tunnels (hw_enc_features); for those of nested guests and packet sockets
 * only csum_start tells.
 */
static bool is_outermost(const struct sk_buff *skb)
{
	unsigned int start = skb_checksum_start_offset(skb);
	struct ipv6hdr v6_copy;
	struct ethhdr eth_copy;
	struct iphdr v4_copy;
	const struct ethhdr *eth = skb_header_pointer(skb, 0, sizeof(eth_copy), &eth_copy);
	const struct ipv6hdr *v6;
	const struct iphdr *v4;
	__be16 fragment = 0;
	int l4 = -1;
	u8 protocol;

	if (!eth)
		return false;
	switch (eth->h_proto) {
	case htons(ETH_P_IP):
		v4 = skb_header_pointer(skb, ETH_HLEN, sizeof(v4_copy), &v4_copy);
		if (!v4 || ip_is_fragment(v4))
			return false;
		protocol = v4->protocol;
		l4 = ETH_HLEN + 4 * v4->ihl;
		break;
	case htons(ETH_P_IPV6):
		v6 = skb_header_pointer(skb, ETH_HLEN, sizeof(v6_copy), &v6_copy);
		if (!v6)
			return false;
		protocol = v6->nexthdr;
		l4 = ipv6_skip_exthdr(skb, ETH_HLEN + sizeof(*v6), &protocol, &fragment);
		if (fragment)
			return false;
		break;
	default:
		return false;
	}
	/* netback parses no further (MAX_IPV6_HDR_LEN). */
	if (l4 < 0 || l4 > ETH_HLEN + 256 || start != l4)
		return false;
	return (protocol == IPPROTO_TCP && skb->csum_offset == offsetof(struct tcphdr, check)) ||
	       (protocol == IPPROTO_UDP && skb->csum_offset == offsetof(struct udphdr, check));
}

/*
 * GRO can build skbs that are too long with their Ethernet header, and backends refuse tiny
 * segments.
 */
netdev_features_t pregrant_features_check(struct sk_buff *skb, struct net_device *netdev,
					  netdev_features_t features)
{
	if (skb->len > PREGRANT_FRAME_MAX || (skb_is_gso(skb) && skb_shinfo(skb)->gso_size < PREGRANT_GSO_MIN))
		features &= ~NETIF_F_GSO_MASK;
	/* The stack then segments the skb and completes the checksum. */
	if (skb->ip_summed == CHECKSUM_PARTIAL && unlikely(!is_outermost(skb)))
		features &= ~(NETIF_F_CSUM_MASK | NETIF_F_GSO_MASK);
	return vlan_features_check(skb, features);
}

/*
 * The peer wrote the headers, so the rules are those of <linux/virtio_net.h> for such frames: a
 * large segment is TCP of the type that it claims, GSO_BY_FRAGS is no size, and what fits one
 * segment is not large. False: the frame must be dropped.
 */
bool pregrant_set_gso(struct sk_buff *skb, u32 type, u32 size)
{
	bool v6 = type == PREGRANT_GSO_TCPV6;
	struct skb_shared_info *info = skb_shinfo(skb);

	if (skb->protocol != (v6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP)) ||
	    skb->csum_offset != offsetof(struct tcphdr, check) || size == GSO_BY_FRAGS)
		return false;
	if (skb->len <= skb_transport_offset(skb) + sizeof(struct tcphdr) + size)
		return true;
	info->gso_size = size;
	/* Let the stack validate the headers, and count segments. */
	info->gso_type = (v6 ? SKB_GSO_TCPV6 : SKB_GSO_TCPV4) | SKB_GSO_DODGY;
	info->gso_segs = 0;
	return true;
}
