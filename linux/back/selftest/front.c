// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* A guest's front, and the host's end of its vif. */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>

#include "front.h"

/* What is in a page for a frame to the guest, before it comes. */
#define UNTOUCHED 0xa5

struct xenbus_driver *driver_of_back;

static u32 *word(grant_ref_t ring, unsigned int k)
{
	return (u32 *)table_page(ring) + k;
}

static void *slot(grant_ref_t ring, u32 index, unsigned int bytes)
{
	return table_page(ring) + SLOTS_AT + index % RING_SLOTS * bytes;
}

static void ring_init(grant_ref_t ring)
{
	memset(table_page(ring), 0, SLOTS_AT);
	*word(ring, REQ_EVENT) = 1;
	*word(ring, RSP_EVENT) = 1;
}

/* For the next connection. */
void front_renew(struct front *front)
{
	front->tx_prod = front->tx_cons = front->rx_prod = front->rx_cons = 0;
	ring_init(front->tx);
	ring_init(front->rx);
	if (front->ctrl)
		ring_init(front->ctrl);
}

static void released(struct device *device)
{
}

struct front *front_new(u16 of, unsigned int handle)
{
	struct front *front = kzalloc(sizeof(*front), GFP_KERNEL | __GFP_NOFAIL);
	unsigned int k;

	front->of = of;
	front->handle = handle;
	/* One at a time, and the neighbour. */
	front->port = of * 2;
	front->ctrl_port = of * 2 + 1;
	front->last = kvzalloc(FRONT_FRAME_MAX, GFP_KERNEL | __GFP_NOFAIL);
	front->wanted = kvzalloc(FRONT_FRAME_MAX, GFP_KERNEL | __GFP_NOFAIL);
	snprintf(front->name, sizeof(front->name), "vif-%u-%u", of, handle);
	snprintf(front->back_dir, sizeof(front->back_dir), "backend/vif/%u/%u", of, handle);
	snprintf(front->front_dir, sizeof(front->front_dir), "device/vif/%u/%u", of, handle);
	front->tx = table_grant(front->of, false);
	front->rx = table_grant(front->of, false);
	front_renew(front);
	for (k = 0; k < FRONT_PAGES; k++) {
		front->pages[k] = table_grant(front->of, true);
		table_fill(front->pages[k], 3 + 13 * k, 7);
	}
	for (k = 0; k < RING_SLOTS; k++)
		front->room[k] = table_grant(front->of, false);
	return front;
}

static void end(grant_ref_t gref)
{
	if (gref && !table_end(gref))
		pr_warn("pregrant: selftest: a page stays mapped\n");
}

void front_free(struct front *front)
{
	unsigned int k;

	end(front->tx);
	end(front->rx);
	end(front->ctrl);
	for (k = 0; k < FRONT_PAGES; k++)
		end(front->pages[k]);
	for (k = 0; k < RING_SLOTS; k++)
		end(front->room[k]);
	store_empty(front->back_dir);
	store_empty(front->front_dir);
	kvfree(front->last);
	kvfree(front->wanted);
	kfree(front);
}

unsigned int front_back_state(const struct front *front)
{
	return store_number(front->back_dir, "state", XenbusStateUnknown);
}

void front_state(struct front *front, unsigned int state)
{
	store_write(front->front_dir, "state", "%u", state);
	if (front->is_there)
		driver_of_back->otherend_changed(&front->xbdev, state);
}

/* What the toolstack and the kernel's xenbus do. */
int front_probe(struct front *front)
{
	struct xenbus_device *xbdev = &front->xbdev;
	int ret;

	store_write(front->back_dir, "handle", "%u", front->handle);
	store_write(front->back_dir, "online", "1");
	store_write(front->back_dir, "state", "1");
	store_write(front->back_dir, "hotplug-status", "connected");
	store_write(front->front_dir, "state", "1");
	memset(xbdev, 0, sizeof(*xbdev));
	xbdev->devicetype = "vif";
	xbdev->nodename = front->back_dir;
	xbdev->otherend = front->front_dir;
	xbdev->otherend_id = front->of;
	xbdev->dev.release = released;
	dev_set_name(&xbdev->dev, "%s", front->name);
	ret = device_register(&xbdev->dev);
	if (ret)
		return ret;
	ret = driver_of_back->probe(xbdev, driver_of_back->ids);
	if (!ret)
		front->is_there = true;
	else
		device_unregister(&xbdev->dev);
	return ret;
}

void front_keys(struct front *front)
{
	const char *dir = front->front_dir;

	store_write(dir, "tx-ring-ref", "%u", front->tx);
	store_write(dir, "rx-ring-ref", "%u", front->rx);
	store_write(dir, "event-channel", "%u", front->port);
	store_write(dir, "request-rx-copy", "1");
	store_write(dir, "feature-rx-notify", "1");
	store_write(dir, "feature-sg", "1");
	if (front->ctrl) {
		store_write(dir, "ctrl-ring-ref", "%u", front->ctrl);
		store_write(dir, "event-channel-ctrl", "%u", front->ctrl_port);
	}
}

const char *front_begin(struct front *front)
{
	if (front_probe(front))
		return "the driver does not take the vif";
	if (!within_a_minute(front_back_state(front) == XenbusStateInitWait))
		return "the back is not at state 2";
	front_keys(front);
	return NULL;
}

const char *front_connect(struct front *front)
{
	const char *wrong = front_begin(front);

	if (wrong)
		return wrong;
	front_post(front, FRONT_POSTED);
	front_state(front, XenbusStateConnected);
	if (!within_a_minute(front_back_state(front) == XenbusStateConnected))
		return "the back is not at state 4";
	return front_up(front);
}

/* A frame that the guest sent. */
static rx_handler_result_t arrives(struct sk_buff **pskb)
{
	struct sk_buff *skb = *pskb;
	struct front *front = rcu_dereference(skb->dev->rx_handler_data), *to = front->sends_on;

	front->last_len = min_t(size_t, skb->len + ETH_HLEN, FRONT_FRAME_MAX);
	if (skb_copy_bits(skb, -ETH_HLEN, front->last, front->last_len))
		front->last_len = 0;
	smp_store_release(&front->arrived, front->arrived + 1);
	if (front->keeps) {
		/* Its vif may go. */
		skb_push(skb, ETH_HLEN);
		skb->dev = NULL;
		front->kept = skb;
	} else if (to) {
		/* As a bridge does. */
		skb_push(skb, ETH_HLEN);
		skb->dev = to->netdev;
		dev_queue_xmit(skb);
	} else {
		consume_skb(skb);
	}
	return RX_HANDLER_CONSUMED;
}

/* What the toolstack's script does. */
const char *front_up(struct front *front)
{
	struct pregrant_device *dev = dev_get_drvdata(&front->xbdev.dev);
	int ret;

	front->netdev = dev->netdev;
	rtnl_lock();
	ret = netdev_rx_handler_register(front->netdev, arrives, front);
	front->has_handler = !ret;
	/* Below the least of IPv6, which would send frames of its own. */
	if (!ret)
		ret = dev_set_mtu(front->netdev, 1000) ?: dev_open(front->netdev, NULL);
	rtnl_unlock();
	if (ret)
		return "its interface cannot be set up";
	if (!within_a_minute(READ_ONCE(dev->is_up) && netif_carrier_ok(front->netdev)))
		return "its interface has no carrier";
	return NULL;
}

/* The back has closed the vif, and says why. */
const char *front_ended(struct front *front)
{
	char path[64], *why;

	if (!within_a_minute(front_back_state(front) == XenbusStateClosed))
		return "the vif goes on";
	snprintf(path, sizeof(path), "error/%s", front->back_dir);
	why = store_read(path, "error", NULL);
	if (IS_ERR(why))
		return "the back does not say why it closes the vif";
	kfree(why);
	return NULL;
}

void front_close(struct front *front)
{
	front_state(front, XenbusStateClosing);
	within_a_minute(front_back_state(front) >= XenbusStateClosing);
	front_state(front, XenbusStateClosed);
	within_a_minute(front_back_state(front) == XenbusStateClosed);
}

/* The toolstack takes the device away. */
void front_remove(struct front *front)
{
	if (!front->is_there)
		return;
	store_write(front->back_dir, "online", "0");
	if (front->has_handler) {
		rtnl_lock();
		netdev_rx_handler_unregister(front->netdev);
		rtnl_unlock();
	}
	driver_of_back->remove(&front->xbdev);
	device_unregister(&front->xbdev.dev);
	front->has_handler = front->is_there = false;
	front->netdev = NULL;
}

void front_put(struct front *front, const u32 words[3])
{
	memcpy(slot(front->tx, front->tx_prod++, TX_SLOT), words, TX_SLOT);
}

void front_publish_index(struct front *front, u32 prod)
{
	smp_store_release(word(front->tx, REQ_PROD), prod);
	channel_send(front->port);
}

void front_publish(struct front *front)
{
	front_publish_index(front, front->tx_prod);
}

struct xen_netif_tx_request *request(struct slots *slots, unsigned int k)
{
	return (struct xen_netif_tx_request *)slots->words[k];
}

/* After the first slot of a frame that has one slot. */
void slots_extra(struct slots *slots, u8 type, u8 flags, u16 size, u8 gso)
{
	struct xen_netif_extra_info *extra = (struct xen_netif_extra_info *)slots->words[slots->n++];

	BUILD_BUG_ON(sizeof(*extra) > TX_SLOT);
	memset(extra, 0, TX_SLOT);
	extra->type = type;
	extra->flags = flags;
	extra->u.gso.size = size;
	extra->u.gso.type = gso;
	request(slots, 0)->flags |= XEN_NETTXF_extra_info;
}

void front_frame(struct front *front, struct slots *to, const u16 *lens, unsigned int n, u16 flags)
{
	unsigned int k, total = 0;

	for (k = 0; k < n; k++) {
		*request(to, k) = (struct xen_netif_tx_request) {
			.gref = front->pages[k % FRONT_PAGES],
			.flags = (k ? 0 : flags) | (k + 1 < n ? XEN_NETTXF_more_data : 0),
			.id = k,
			.size = lens[k],
		};
		memcpy(front->wanted + total, table_page(front->pages[k % FRONT_PAGES]), lens[k]);
		total += lens[k];
	}
	request(to, 0)->size = total;
	to->n = n;
}

void front_send(struct front *front, const struct slots *slots)
{
	unsigned int k;

	for (k = 0; k < slots->n; k++)
		front_put(front, slots->words[k]);
	front_publish(front);
}

const char *front_answers(struct front *front, unsigned int n, s16 *statuses)
{
	struct xen_netif_tx_response *response;

	for (; n; n--) {
		if (!within_a_minute(READ_ONCE(*word(front->tx, RSP_PROD)) != front->tx_cons))
			return "a request is not answered";
		smp_rmb();
		response = slot(front->tx, front->tx_cons++, TX_SLOT);
		*statuses++ = response->status;
	}
	return READ_ONCE(*word(front->tx, RSP_PROD)) - front->tx_cons <= front->tx_prod - front->tx_cons ?
		       NULL : "more requests are answered than were made";
}

/* All have this status, and the answers leave the rest of their slots alone (XSA-216). */
const char *front_answered(struct front *front, const struct slots *slots, s16 status)
{
	u32 from = front->tx_cons;
	s16 statuses[RING_SLOTS];
	const char *wrong = front_answers(front, slots->n, statuses);
	unsigned int k;

	for (k = 0; !wrong && k < slots->n; k++) {
		if (memcmp(slot(front->tx, from + k, TX_SLOT) + 4, (u8 *)slots->words[k] + 4, TX_SLOT - 4))
			wrong = "an answer writes more than itself";
		if (statuses[k] != status && statuses[k] != XEN_NETIF_RSP_NULL)
			wrong = status == XEN_NETIF_RSP_OKAY ? "what is right is refused" : "what is wrong is not refused";
	}
	return wrong;
}

const char *front_asks(struct front *front, const struct xen_netif_tx_request *request, s16 status)
{
	unsigned int before = front->arrived;
	const char *wrong;
	s16 answer;

	front_put(front, (const u32 *)request);
	front_publish(front);
	wrong = front_answers(front, 1, &answer);
	if (wrong || answer != status)
		return wrong ?: "a frame of one slot is not answered as it should be";
	if (status != XEN_NETIF_RSP_OKAY)
		return front->arrived == before ? NULL : "a frame that is wrong arrives";
	if (!within_a_minute(smp_load_acquire(&front->arrived) != before))
		return "a frame of one slot does not arrive";
	return front->last_len == request->size ? NULL : "it has another length";
}

const char *front_sends(struct front *front)
{
	static const u16 lens[] = { 1400, 600, 100 };
	unsigned int before = front->arrived;
	struct slots *slots = kzalloc(sizeof(*slots), GFP_KERNEL | __GFP_NOFAIL);
	const char *wrong;

	front_frame(front, slots, lens, ARRAY_SIZE(lens), 0);
	front_send(front, slots);
	wrong = front_answered(front, slots, XEN_NETIF_RSP_OKAY);
	kfree(slots);
	if (wrong)
		return wrong;
	if (!within_a_minute(smp_load_acquire(&front->arrived) != before))
		return "a frame of the guest does not arrive";
	if (front->last_len != FRONT_SENT || memcmp(front->last, front->wanted, FRONT_SENT))
		return "a frame of the guest is not as it was sent";
	return NULL;
}

/* Posts a page for a slot of a frame, which front_publish_room() makes the back's. */
void front_put_room(struct front *front, grant_ref_t gref)
{
	unsigned int at = front->rx_prod++ % RING_SLOTS;

	*(struct xen_netif_rx_request *)slot(front->rx, at, RX_SLOT) = (struct xen_netif_rx_request) {
		.id = at,
		.gref = gref,
	};
}

void front_publish_room(struct front *front, u32 prod)
{
	smp_store_release(word(front->rx, REQ_PROD), prod);
	/* While no back is bound there is no one. */
	if (front->is_there)
		channel_send(front->port);
}

void front_post(struct front *front, unsigned int n)
{
	for (; n; n--) {
		grant_ref_t gref = front->room[front->rx_prod % RING_SLOTS];

		table_fill(gref, UNTOUCHED, 0);
		front_put_room(front, gref);
	}
	front_publish_room(front, front->rx_prod);
}

/* The host sends a frame to the guest. What is beside it in its memory is not its. */
int front_host_sends(struct front *front, unsigned int len)
{
	struct sk_buff *skb;
	unsigned int k;
	int err;

	skb = len > 2048 ? alloc_skb_with_frags(128, len - 128, 0, &err, GFP_KERNEL) : alloc_skb(len + 512, GFP_KERNEL);
	if (!skb)
		return -ENOMEM;
	if (len > 2048) {
		skb_put(skb, 128);
		skb->data_len = len - 128;
		skb->len = len;
	} else {
		memset(skb->data, 0x5a, len + 512);
		skb_put(skb, len);
	}
	for (k = 0; k < len; k++)
		front->wanted[k] = 91 + 5 * k;
	if (skb_store_bits(skb, 0, front->wanted, len)) {
		kfree_skb(skb);
		return -EINVAL;
	}
	skb->dev = front->netdev;
	skb_reset_mac_header(skb);
	return dev_direct_xmit(skb, 0);
}

/* A frame came: with these bytes, and none beside it (XSA-216, 376, 403), or as an error. */
const char *front_taken(struct front *front, unsigned int len, bool is_well)
{
	struct xen_netif_rx_response response;
	unsigned int at = 0, room, k;
	u8 *page;

	do {
		if (!within_a_minute(READ_ONCE(*word(front->rx, RSP_PROD)) != front->rx_cons))
			return "a frame to the guest does not arrive";
		smp_rmb();
		room = front->rx_cons % RING_SLOTS;
		response = *(struct xen_netif_rx_response *)slot(front->rx, front->rx_cons++, RX_SLOT);
		if (response.status < 0) {
			if (!(response.flags & XEN_NETRXF_more_data))
				return is_well ? "a frame to the guest fails" : NULL;
			continue;
		}
		page = table_page(front->room[room]);
		if (response.offset + response.status > PAGE_SIZE || at + response.status > len)
			return "an answer for a frame to the guest is outside of its page";
		if (memcmp(page + response.offset, front->wanted + at, response.status))
			return "a frame to the guest is not as it was sent";
		for (k = 0; k < PAGE_SIZE; k++)
			if ((k < response.offset || k >= response.offset + response.status) && page[k] != UNTOUCHED)
				return "a page of the guest has more than its frame";
		at += response.status;
	} while (response.flags & XEN_NETRXF_more_data);
	if (!is_well)
		return "a frame goes to pages that are not the guest's";
	return at == len ? NULL : "a frame to the guest is not whole";
}

const char *front_receives(struct front *front)
{
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < 2; k++) {
		u32 before = front->rx_cons;

		if (front_host_sends(front, k ? 9000 : 60))
			return "the interface takes no frame";
		wrong = front_taken(front, k ? 9000 : 60, true);
		front_post(front, front->rx_cons - before);
	}
	return wrong;
}
